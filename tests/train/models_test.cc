// models_test.cc: sizes known from the papers, shapes, gradients, and weights determined by the
// seed.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/models.h"

#include <gtest/gtest.h>

#include <map>

#include "thinwire/core/error.h"

namespace thinwire::train {

// How gtest prints a parameter; by default its bytes.
void PrintTo(const ModelInfo& info, std::ostream* out) { *out << info.name; }

namespace {

constexpr Problem cifar{Domain::images, 3, 32, 32, 10};
constexpr Problem imagenet{Domain::images, 3, 224, 224, 1000};
constexpr Problem words{Domain::text, 1, 1, 1, 10'000};
constexpr Problem letters_heard{Domain::speech, 13, 1, 1, 28};
constexpr Problem letters{Domain::text, 1, 1, 1, 65};

std::int64_t parameters_of(const std::string& name, const Problem& problem) {
  std::int64_t count = 0;
  for (const auto& parameter : make_model(name, problem, 1)->parameters()) {
    count += parameter.numel();
  }
  return count;
}

std::string error_of(const std::string& name, const Problem& problem) {
  try {
    make_model(name, problem, 1);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

torch::Tensor input_for(const Problem& problem, std::int64_t batch, std::int64_t tokens) {
  if (problem.domain == Domain::text)
    return torch::randint(problem.classes, {batch, tokens}, torch::kInt64);
  if (problem.domain == Domain::speech) return torch::randn({batch, tokens, problem.channels});
  return torch::randn({batch, problem.channels, problem.height, problem.width});
}

TEST(Models, HaveTheParametersOfTheirPapers) {
  EXPECT_EQ(parameters_of("mlp", {Domain::images, 1, 28, 28, 10}), 328'810);
  EXPECT_EQ(parameters_of("cnn", {Domain::images, 1, 28, 28, 10}), 421'642);
  EXPECT_EQ(parameters_of("cnn", cifar), 545'098);
  EXPECT_EQ(parameters_of("cnn", {Domain::images, 1, 8, 8, 10}), 53'002);
  EXPECT_EQ(parameters_of("resnet20", cifar), 269'722);
  EXPECT_EQ(parameters_of("resnet110", cifar), 1'727'962);
  EXPECT_EQ(parameters_of("resnet18", cifar), 11'173'962);
  EXPECT_EQ(parameters_of("lstm650", words), 19'780'400);
  EXPECT_EQ(parameters_of("lstm1500", words), 66'034'000);
  EXPECT_EQ(parameters_of("speech", letters_heard), 5'309'980);
}

TEST(Models, HaveTheParametersOfTorchvision) {
  EXPECT_EQ(parameters_of("resnet50", imagenet), 25'557'032);
  EXPECT_EQ(parameters_of("alexnet", imagenet), 61'100'840);
  EXPECT_EQ(parameters_of("vgg16", imagenet), 138'357'544);
}

// Every model of the table, on the smallest problem that shows its shape.
class EveryModel : public testing::TestWithParam<ModelInfo> {
 protected:
  Problem problem() const {
    if (GetParam().domain == Domain::text) return letters;
    if (GetParam().domain == Domain::speech) return letters_heard;
    return GetParam().name == "alexnet" ? Problem{Domain::images, 3, 63, 63, 10} : cifar;
  }
  std::shared_ptr<Model> make(std::uint64_t seed) const {
    return make_model(GetParam().name, problem(), seed);
  }
};

TEST_P(EveryModel, GivesLogits) {
  const torch::NoGradGuard no_gradients;
  const auto model = make(1);
  const torch::Tensor logits = model->forward(input_for(problem(), 2, 7));
  const std::map<Domain, std::vector<std::int64_t>> expected = {
      {Domain::images, {2, 10}}, {Domain::text, {2, 7, 65}}, {Domain::speech, {2, 4, 28}}};
  EXPECT_EQ(logits.sizes().vec(), expected.at(problem().domain));
  EXPECT_TRUE(logits.isfinite().all().item<bool>());
}

// All except the two largest, which are chains of torch's own layers like the cnn.
class SmallModel : public EveryModel {};

std::vector<ModelInfo> small_models() {
  std::vector<ModelInfo> small;
  for (const ModelInfo& info : models()) {
    if (info.name != "alexnet" && info.name != "vgg16") small.push_back(info);
  }
  return small;
}

TEST_P(SmallModel, GivesEveryParameterAGradient) {
  const auto model = make(1);
  model->forward(input_for(problem(), 2, 7)).square().mean().backward();
  for (const auto& parameter : model->named_parameters()) {
    ASSERT_TRUE(parameter->grad().defined()) << parameter.key();
    EXPECT_TRUE(parameter->grad().isfinite().all().item<bool>()) << parameter.key();
  }
}

TEST_P(SmallModel, FollowsFromItsSeed) {
  const auto first = make(7)->parameters();
  torch::rand({5});  // earlier draws must not matter
  const auto again = make(7)->parameters();
  const auto other = make(8)->parameters();
  ASSERT_EQ(first.size(), again.size());
  bool differs = false;
  for (std::size_t i = 0; i < first.size(); ++i) {
    EXPECT_TRUE(torch::equal(first[i], again[i])) << i;
    differs = differs || !torch::equal(first[i], other[i]);
  }
  EXPECT_TRUE(differs);
}

INSTANTIATE_TEST_SUITE_P(, EveryModel, testing::ValuesIn(models()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(, SmallModel, testing::ValuesIn(small_models()),
                         [](const auto& info) { return info.param.name; });

// EveryModel tests colour at 32x32.
TEST(Models, TheCnnTakesFashionMnistAndDigits) {
  const torch::NoGradGuard no_gradients;
  for (const Problem& problem :
       {Problem{Domain::images, 1, 28, 28, 10}, Problem{Domain::images, 1, 8, 8, 10}}) {
    const auto model = make_model("cnn", problem, 1);
    EXPECT_EQ(model->forward(input_for(problem, 3, 1)).sizes().vec(),
              (std::vector<std::int64_t>{3, 10}));
    EXPECT_TRUE(model->buffers().empty());  // no BatchNorm
  }
}

TEST(Models, LeaveTheDefaultGeneratorAlone) {
  torch::manual_seed(3);
  const torch::Tensor expected = torch::rand({4});
  torch::manual_seed(3);
  make_model("mlp", cifar, 1);
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
}

TEST(Models, AWiderImageThanHighIsFine) {
  const Problem wide{Domain::images, 2, 9, 21, 5};
  for (const char* name : {"mlp", "cnn", "resnet20"}) {
    EXPECT_EQ(make_model(name, wide, 1)->forward(input_for(wide, 2, 0)).size(1), 5) << name;
  }
}

TEST(Models, TheShortcutWithoutWeightsKeepsEverySecondPixel) {
  // With zero weights in the last norm of every block, only the shortcuts remain: the network's
  // features are the stem's, then zeros.
  const auto model = make_model("resnet20", cifar, 1);
  model->eval();
  const torch::NoGradGuard no_gradients;
  const torch::Tensor before = model->forward(input_for(cifar, 1, 0));
  for (auto& parameter : model->named_parameters()) {
    if (parameter.key().find("bn2.weight") != std::string::npos) parameter->zero_();
    if (parameter.key() == "fc.weight") parameter->slice(1, 24, 40).zero_();
    if (parameter.key() == "fc.bias") parameter->zero_();
  }
  // Half of the new channels come before, half after: the stem's 16 are in the middle of 64.
  EXPECT_EQ(model->forward(input_for(cifar, 1, 0)).abs().max().item<float>(), 0.0f);
  EXPECT_GT(before.abs().max().item<float>(), 0.0f);
}

TEST(Models, TheTransformerDoesNotSeeTheFuture) {
  const torch::NoGradGuard no_gradients;
  const auto model = make_model("transformer", letters, 1);
  const torch::Tensor input = input_for(letters, 1, 12);
  torch::Tensor changed = input.clone();
  changed[0][8] = (changed[0][8] + 1) % 65;
  const torch::Tensor a = model->forward(input), b = model->forward(changed);
  EXPECT_TRUE(torch::allclose(a.slice(1, 0, 8), b.slice(1, 0, 8)));
  EXPECT_FALSE(torch::allclose(a.slice(1, 8, 9), b.slice(1, 8, 9)));
}

TEST(Models, TheTransformerRefusesALongSequence) {
  const auto model = make_model("transformer", letters, 1);
  EXPECT_THROW(model->forward(input_for(letters, 1, 1025)), Error);
}

TEST(Models, DropoutFollowsTheDefaultGenerator) {
  const auto model = make_model("lstm1500", {Domain::text, 1, 1, 1, 20}, 1);
  const torch::NoGradGuard no_gradients;
  const torch::Tensor input = input_for({Domain::text, 1, 1, 1, 20}, 1, 3);
  torch::manual_seed(5);
  const torch::Tensor first = model->forward(input);
  const torch::Tensor other = model->forward(input);
  torch::manual_seed(5);
  EXPECT_TRUE(torch::equal(model->forward(input), first));
  EXPECT_FALSE(torch::equal(first, other));
}

TEST(Models, SayWhatDoesNotFit) {
  EXPECT_EQ(
      error_of("resnet21", cifar),
      "unknown model 'resnet21'; known are mlp, cnn, resnet20, resnet110, resnet18, resnet50, "
      "alexnet, vgg16, lstm, lstm650, lstm1500, transformer, speech; did you mean "
      "'resnet20'?");
  EXPECT_EQ(error_of("resnet20", words),
            "model 'resnet20' reads images, but the data is text; for this data use one of lstm, "
            "lstm650, lstm1500, transformer");
  EXPECT_EQ(error_of("lstm", letters_heard),
            "model 'lstm' reads text, but the data is speech; for this data use one of speech");
  EXPECT_EQ(
      error_of("alexnet", cifar),
      "model 'alexnet' needs images of at least 63x63, but the data has 32x32; for this data use "
      "one of mlp, cnn, resnet20, resnet110, resnet18, resnet50, vgg16");
  EXPECT_EQ(error_of("lstm", {Domain::images, 1, 8, 8, 10}),
            "model 'lstm' reads text, but the data is images; for this data use one of mlp, cnn, "
            "resnet20, resnet110, resnet18");
  EXPECT_EQ(error_of("mlp", {Domain::images, 0, 8, 8, 10}),
            "expected an image of at least 1x1x1, got 0x8x8");
}

}  // namespace
}  // namespace thinwire::train
