// models_text.cc: language models: tokens in, logits of each next token out.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "apps/train/models_zoo.h"
#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

namespace nn = torch::nn;

// Zaremba et al. 2014, with untied input and output embeddings. Every batch starts from a zero
// state; otherwise a resumed run would have to carry the state too.
class Lstm : public Model {
 public:
  Lstm(std::int64_t width, double dropout, std::int64_t vocabulary)
      : embedding_(register_module("embedding", nn::Embedding(vocabulary, width))),
        lstm_(register_module(
            "lstm",
            nn::LSTM(
                nn::LSTMOptions(width, width).num_layers(2).batch_first(true).dropout(dropout)))),
        decoder_(register_module("decoder", nn::Linear(width, vocabulary))),
        dropout_(register_module("dropout", nn::Dropout(dropout))) {
    nn::init::uniform_(embedding_->weight, -0.1, 0.1);
    nn::init::uniform_(decoder_->weight, -0.1, 0.1);
    nn::init::zeros_(decoder_->bias);
  }

  torch::Tensor forward(const torch::Tensor& input) override {
    const torch::Tensor words = dropout_->forward(embedding_->forward(input));
    return decoder_->forward(dropout_->forward(std::get<0>(lstm_->forward(words))));
  }

 private:
  nn::Embedding embedding_;
  nn::LSTM lstm_;
  nn::Linear decoder_;
  nn::Dropout dropout_;
};

constexpr std::int64_t layers = 4, width = 128, heads = 4, positions = 1024;

// Attention and a perceptron, each with a norm in front and a shortcut around it (GPT-2's order).
class Block : public nn::Module {
 public:
  Block()
      : norm1_(register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})))),
        qkv_(register_module("qkv", nn::Linear(width, 3 * width))),
        projection_(register_module("projection", nn::Linear(width, width))),
        norm2_(register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})))),
        up_(register_module("up", nn::Linear(width, 4 * width))),
        down_(register_module("down", nn::Linear(4 * width, width))) {}

  torch::Tensor forward(const torch::Tensor& input, const torch::Tensor& mask) {
    const torch::Tensor x = input + attention(norm1_->forward(input), mask);
    return x + down_->forward(torch::gelu(up_->forward(norm2_->forward(x))));
  }

  // The branches of all layers add up in one residual stream, so their last layers start smaller.
  void shrink_branches() {
    for (const auto& last : {projection_, down_}) {
      nn::init::normal_(last->weight, 0, 0.02 / std::sqrt(2.0 * layers));
    }
  }

 private:
  // Written out, because the gradient of torch's fused attention may vary between runs on a GPU.
  torch::Tensor attention(const torch::Tensor& x, const torch::Tensor& mask) {
    const std::int64_t batch = x.size(0), tokens = x.size(1), depth = width / heads;
    const torch::Tensor parts =
        qkv_->forward(x).view({batch, tokens, 3, heads, depth}).permute({2, 0, 3, 1, 4});
    const torch::Tensor scores =
        torch::matmul(parts[0], parts[1].transpose(2, 3)) / std::sqrt(static_cast<double>(depth));
    const torch::Tensor mixed = torch::matmul(torch::softmax(scores + mask, -1), parts[2]);
    return projection_->forward(mixed.transpose(1, 2).reshape({batch, tokens, width}));
  }

  nn::LayerNorm norm1_;
  nn::Linear qkv_, projection_;
  nn::LayerNorm norm2_;
  nn::Linear up_, down_;
};

class Transformer : public Model {
 public:
  explicit Transformer(std::int64_t vocabulary)
      : tokens_(register_module("tokens", nn::Embedding(vocabulary, width))),
        positions_(register_module("positions", nn::Embedding(positions, width))),
        norm_(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})))),
        decoder_(register_module("decoder",
                                 nn::Linear(nn::LinearOptions(width, vocabulary).bias(false)))) {
    for (std::int64_t i = 0; i < layers; ++i) {
      blocks_.push_back(
          register_module("block" + std::to_string(i + 1), std::make_shared<Block>()));
    }
    initialise();
  }

  torch::Tensor forward(const torch::Tensor& input) override {
    const std::int64_t count = input.size(1);
    if (count > positions) {
      fail("model 'transformer': a sequence has ", count, " tokens, expected at most ", positions,
           "; use a shorter sequence");
    }
    torch::Tensor x = tokens_->forward(input) + positions_->weight.slice(0, 0, count);
    const torch::Tensor mask =
        torch::full({count, count}, -std::numeric_limits<float>::infinity(), x.options()).triu(1);
    for (const auto& block : blocks_) x = block->forward(x, mask);
    return decoder_->forward(norm_->forward(x));
  }

 private:
  void initialise() {
    for (const auto& module : modules(false)) {
      if (auto* linear = module->as<nn::Linear>()) {
        nn::init::normal_(linear->weight, 0, 0.02);
        if (linear->bias.defined()) nn::init::zeros_(linear->bias);
      } else if (auto* embedding = module->as<nn::Embedding>()) {
        nn::init::normal_(embedding->weight, 0, 0.02);
      }
    }
    for (const auto& block : blocks_) block->shrink_branches();
  }

  nn::Embedding tokens_, positions_;
  std::vector<std::shared_ptr<Block>> blocks_;
  nn::LayerNorm norm_;
  nn::Linear decoder_;
};

}  // namespace

std::shared_ptr<Model> make_lstm(const Problem& problem) {
  return std::make_shared<Lstm>(200, 0.0, problem.classes);
}

std::shared_ptr<Model> make_lstm650(const Problem& problem) {
  return std::make_shared<Lstm>(650, 0.5, problem.classes);
}

std::shared_ptr<Model> make_lstm1500(const Problem& problem) {
  return std::make_shared<Lstm>(1500, 0.65, problem.classes);
}

std::shared_ptr<Model> make_transformer(const Problem& problem) {
  return std::make_shared<Transformer>(problem.classes);
}

}  // namespace thinwire::train
