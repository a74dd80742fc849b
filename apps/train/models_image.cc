// models_image.cc: image classifiers, from a small perceptron to VGG-16: images in,
// class logits out.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/models_zoo.h"

namespace thinwire::train {
namespace {

namespace nn = torch::nn;

nn::Conv2d conv(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                std::int64_t padding) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding));
}

// No bias, because a batch norm follows and has its own.
nn::Conv2d conv_for_norm(std::int64_t in, std::int64_t out, std::int64_t kernel,
                         std::int64_t stride) {
  return nn::Conv2d(
      nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

nn::MaxPool2d max_pool(std::int64_t kernel, std::int64_t stride, std::int64_t padding = 0) {
  return nn::MaxPool2d(nn::MaxPool2dOptions(kernel).stride(stride).padding(padding));
}

nn::AdaptiveAvgPool2d pool_to(std::int64_t side) {
  return nn::AdaptiveAvgPool2d(nn::AdaptiveAvgPool2dOptions({side, side}));
}

// He et al. 2015: preserves the variance of gradients through ReLU layers.
void he_convolutions(nn::Module& model) {
  for (const auto& module : model.modules(false)) {
    if (auto* layer = module->as<nn::Conv2d>()) {
      nn::init::kaiming_normal_(layer->weight, 0, torch::kFanOut, torch::kReLU);
      if (layer->bias.defined()) nn::init::zeros_(layer->bias);
    }
  }
}

// A chain of layers. Between its two parts the image becomes a vector.
class Chain : public Model {
 public:
  Chain(const nn::Sequential& features, const nn::Sequential& classifier)
      : features_(register_module("features", features)),
        classifier_(register_module("classifier", classifier)) {}

  torch::Tensor forward(const torch::Tensor& input) override {
    return classifier_->forward(features_->forward(input).flatten(1));
  }

 private:
  nn::Sequential features_, classifier_;
};

// A shortcut where the shape changes: option A of the paper has no weights (every second pixel, and
// zeros for the new channels), option B is a 1x1 convolution.
enum class Shortcut { padded, projected };

nn::Sequential projection(std::int64_t in, std::int64_t out, std::int64_t stride) {
  return nn::Sequential(conv_for_norm(in, out, 1, stride), nn::BatchNorm2d(out));
}

// The two 3x3 layers of a small ResNet.
class BasicBlock : public nn::Module {
 public:
  BasicBlock(std::int64_t in, std::int64_t out, std::int64_t stride, Shortcut kind)
      : stride_(stride),
        added_(out - in),
        conv1_(register_module("conv1", conv_for_norm(in, out, 3, stride))),
        bn1_(register_module("bn1", nn::BatchNorm2d(out))),
        conv2_(register_module("conv2", conv_for_norm(out, out, 3, 1))),
        bn2_(register_module("bn2", nn::BatchNorm2d(out))) {
    if (kind == Shortcut::projected && !same_shape())
      projection_ = register_module("shortcut", projection(in, out, stride));
  }

  torch::Tensor forward(const torch::Tensor& input) {
    const torch::Tensor middle = torch::relu(bn1_->forward(conv1_->forward(input)));
    return torch::relu(bn2_->forward(conv2_->forward(middle)) + shortcut(input));
  }

 private:
  bool same_shape() const { return added_ == 0 && stride_ == 1; }

  torch::Tensor shortcut(const torch::Tensor& input) {
    if (same_shape()) return input;
    if (!projection_.is_empty()) return projection_->forward(input);
    const torch::Tensor sparse =
        input.slice(2, 0, std::nullopt, stride_).slice(3, 0, std::nullopt, stride_);
    return nn::functional::pad(
        sparse, nn::functional::PadFuncOptions({0, 0, 0, 0, added_ / 2, added_ - added_ / 2}));
  }

  std::int64_t stride_, added_;
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d bn2_;
  nn::Sequential projection_{nullptr};
};

// The 1x1, 3x3, 1x1 layers of an ImageNet ResNet, with the stride in the 3x3 layer as in
// torchvision. If the shape changes, the shortcut is a 1x1 convolution.
class Bottleneck : public nn::Module {
 public:
  Bottleneck(std::int64_t in, std::int64_t width, std::int64_t stride)
      : conv1_(register_module("conv1", conv_for_norm(in, width, 1, 1))),
        bn1_(register_module("bn1", nn::BatchNorm2d(width))),
        conv2_(register_module("conv2", conv_for_norm(width, width, 3, stride))),
        bn2_(register_module("bn2", nn::BatchNorm2d(width))),
        conv3_(register_module("conv3", conv_for_norm(width, 4 * width, 1, 1))),
        bn3_(register_module("bn3", nn::BatchNorm2d(4 * width))) {
    if (in == 4 * width && stride == 1) return;
    shortcut_ = register_module("shortcut", projection(in, 4 * width, stride));
  }

  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor x = torch::relu(bn1_->forward(conv1_->forward(input)));
    x = torch::relu(bn2_->forward(conv2_->forward(x)));
    x = bn3_->forward(conv3_->forward(x));
    return torch::relu(x + (shortcut_.is_empty() ? input : shortcut_->forward(input)));
  }

 private:
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  nn::Conv2d conv2_;
  nn::BatchNorm2d bn2_;
  nn::Conv2d conv3_;
  nn::BatchNorm2d bn3_;
  nn::Sequential shortcut_{nullptr};
};

class ResNet : public Model {
 public:
  ResNet(const nn::Sequential& stem, const nn::Sequential& blocks, std::int64_t width,
         std::int64_t classes)
      : stem_(register_module("stem", stem)),
        blocks_(register_module("blocks", blocks)),
        fc_(register_module("fc", nn::Linear(width, classes))) {
    he_convolutions(*this);
  }

  torch::Tensor forward(const torch::Tensor& input) override {
    return fc_->forward(blocks_->forward(stem_->forward(input)).mean({2, 3}));
  }

 private:
  nn::Sequential stem_, blocks_;
  nn::Linear fc_;
};

// Stages of basic blocks, behind a stem that keeps the size of small images.
std::shared_ptr<Model> make_cifar_resnet(const std::vector<std::int64_t>& widths,
                                         std::int64_t blocks_of_stage, Shortcut kind,
                                         const Problem& problem) {
  std::int64_t in = widths.front();
  const nn::Sequential stem(conv_for_norm(problem.channels, in, 3, 1), nn::BatchNorm2d(in),
                            nn::ReLU());
  nn::Sequential blocks;
  for (const std::int64_t width : widths) {
    for (std::int64_t i = 0; i < blocks_of_stage; ++i) {
      const std::int64_t stride = width > in ? 2 : 1;
      blocks->push_back(std::make_shared<BasicBlock>(in, width, stride, kind));
      in = width;
    }
  }
  return std::make_shared<ResNet>(stem, blocks, in, problem.classes);
}

// He et al.'s own: 6n + 2 layers.
std::shared_ptr<Model> make_narrow_resnet(std::int64_t n, const Problem& problem) {
  return make_cifar_resnet({16, 32, 64}, n, Shortcut::padded, problem);
}

// Configuration D of the paper. 0 stands for pooling.
nn::Sequential vgg16_features(std::int64_t channels) {
  nn::Sequential features;
  std::int64_t in = channels;
  for (const std::int64_t width :
       {64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0}) {
    if (width == 0) {
      features->push_back(max_pool(2, 2));
      continue;
    }
    features->push_back(conv(in, width, 3, 1, 1));
    features->push_back(nn::ReLU());
    in = width;
  }
  features->push_back(pool_to(7));
  return features;
}

}  // namespace

std::shared_ptr<Model> make_mlp(const Problem& problem) {
  constexpr std::int64_t hidden = 300;
  const std::int64_t pixels = problem.channels * problem.height * problem.width;
  return std::make_shared<Chain>(
      nn::Sequential(nn::Flatten()),
      nn::Sequential(nn::Linear(pixels, hidden), nn::ReLU(), nn::Linear(hidden, hidden), nn::ReLU(),
                     nn::Linear(hidden, problem.classes)));
}

std::shared_ptr<Model> make_cnn(const Problem& problem) {
  constexpr std::int64_t hidden = 128;
  const std::int64_t features = 64 * (problem.height / 4) * (problem.width / 4);
  return std::make_shared<Chain>(
      nn::Sequential(conv(problem.channels, 32, 3, 1, 1), nn::ReLU(), max_pool(2, 2),
                     conv(32, 64, 3, 1, 1), nn::ReLU(), max_pool(2, 2)),
      nn::Sequential(nn::Linear(features, hidden), nn::ReLU(),
                     nn::Linear(hidden, problem.classes)));
}

std::shared_ptr<Model> make_resnet20(const Problem& problem) {
  return make_narrow_resnet(3, problem);
}

std::shared_ptr<Model> make_resnet110(const Problem& problem) {
  return make_narrow_resnet(18, problem);
}

std::shared_ptr<Model> make_resnet18(const Problem& problem) {
  return make_cifar_resnet({64, 128, 256, 512}, 2, Shortcut::projected, problem);
}

std::shared_ptr<Model> make_resnet50(const Problem& problem) {
  struct Stage {
    std::int64_t width, blocks;
  };
  const nn::Sequential stem(conv_for_norm(problem.channels, 64, 7, 2), nn::BatchNorm2d(64),
                            nn::ReLU(), max_pool(3, 2, 1));
  nn::Sequential blocks;
  std::int64_t in = 64;
  for (const Stage& stage : {Stage{64, 3}, Stage{128, 4}, Stage{256, 6}, Stage{512, 3}}) {
    for (std::int64_t i = 0; i < stage.blocks; ++i) {
      const std::int64_t stride = i == 0 && stage.width > 64 ? 2 : 1;
      blocks->push_back(std::make_shared<Bottleneck>(in, stage.width, stride));
      in = 4 * stage.width;
    }
  }
  return std::make_shared<ResNet>(stem, blocks, in, problem.classes);
}

std::shared_ptr<Model> make_alexnet(const Problem& problem) {
  return std::make_shared<Chain>(
      nn::Sequential(conv(problem.channels, 64, 11, 4, 2), nn::ReLU(), max_pool(3, 2),
                     conv(64, 192, 5, 1, 2), nn::ReLU(), max_pool(3, 2), conv(192, 384, 3, 1, 1),
                     nn::ReLU(), conv(384, 256, 3, 1, 1), nn::ReLU(), conv(256, 256, 3, 1, 1),
                     nn::ReLU(), max_pool(3, 2), pool_to(6)),
      nn::Sequential(nn::Dropout(0.5), nn::Linear(256 * 6 * 6, 4096), nn::ReLU(), nn::Dropout(0.5),
                     nn::Linear(4096, 4096), nn::ReLU(), nn::Linear(4096, problem.classes)));
}

std::shared_ptr<Model> make_vgg16(const Problem& problem) {
  auto model =
      std::make_shared<Chain>(vgg16_features(problem.channels),
                              nn::Sequential(nn::Linear(512 * 7 * 7, 4096), nn::ReLU(),
                                             nn::Dropout(0.5), nn::Linear(4096, 4096), nn::ReLU(),
                                             nn::Dropout(0.5), nn::Linear(4096, problem.classes)));
  // Sixteen layers without normalization do not learn from torch's smaller default.
  he_convolutions(*model);
  return model;
}

}  // namespace thinwire::train
