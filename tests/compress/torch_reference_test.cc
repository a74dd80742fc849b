// torch_reference_test.cc: compares PyTorch's own hooks and topk with ours, on the same gradients.
// torch_reference.py ran them and wrote torch_reference.txt.
// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <map>

#include "tests/laws.h"

namespace thinwire {
namespace {

using namespace testing;

using Reference = std::map<std::string, std::vector<float>>;

Reference read_reference() {
  std::ifstream file(THINWIRE_SOURCE_DIR "/tests/compress/torch_reference.txt");
  std::string line;
  std::getline(file, line);  // the line that says who wrote it
  Reference all;
  std::string key;
  std::size_t count = 0;
  while (file >> key >> count) {
    std::string digits;
    while (digits.size() < count * 8 && file >> line) digits += line;
    for (std::size_t i = 0; i < count; ++i) {
      const auto bits = std::stoul(digits.substr(i * 8, 8), nullptr, 16);
      all[key].push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    }
  }
  return all;
}

const Bucket model{0,
                   {{"w1", 0, 640, {20, 32}},
                    {"w2", 640, 640, {20, 32}},
                    {"conv", 1280, 324, {12, 3, 3, 3}},
                    {"bias", 1604, 12, {12}},
                    {"small", 1616, 12, {3, 4}}}};

// The formula of torch_reference.py.
std::vector<float> formula(int rank, std::uint64_t step, int terms) {
  std::vector<float> values;
  for (std::size_t p = 0; p < model.parameters.size(); ++p) {
    const Parameter& parameter = model.parameters[p];
    const std::size_t cols = parameter.count / static_cast<std::size_t>(parameter.shape[0]);
    const std::uint64_t noise = 1000 * (step + 1) + 10 * static_cast<std::uint64_t>(rank) + p;
    for (std::size_t i = 0; i < parameter.count; ++i) {
      double drift = 0, weight = 1;
      for (std::uint64_t t = 0; t < static_cast<std::uint64_t>(terms); ++t, weight *= 0.5) {
        const double a = double{random_unit(2 * t, 100 * p + i / cols)} - 0.5;
        drift += a * (double{random_unit(2 * t + 1, 100 * p + i % cols)} - 0.5) * weight;
      }
      values.push_back(
          static_cast<float>(drift + 0.0078125 * (double{random_unit(noise, i)} - 0.5)));
    }
  }
  return values;
}

// Only rounding differs, but it accumulates in the error over the steps. This is the largest
// allowed difference of an element, relative to the root mean square of a parameter.
constexpr double tolerance = 1e-4;

void expect_close(std::span<const float> ours, const std::vector<float>& expected,
                  const std::string& what) {
  ASSERT_EQ(ours.size(), expected.size());
  const double scale = norm(expected) / std::sqrt(static_cast<double>(expected.size()));
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(ours[i], expected[i], tolerance * scale) << what << " element " << i;
}

// Compares the averages, and what rank 0 keeps in the end: every rule that keeps the same sum over
// the workers gives the same averages.
void expect_like_the_hook(const Reference& reference, Group& group, int matrix_rank) {
  const std::string prefix = "powersgd." + std::to_string(matrix_rank) + ".";
  Exchange exchange(group, {model}, Config::parse("powersgd:rank=" + std::to_string(matrix_rank)));
  State state = state_of(exchange);
  for (const char* name : {"w1", "w2", "conv"})
    state.at(std::string(name) + "/q").values = reference.at(prefix + "q." + name);
  StateLoader loader(state);
  exchange.visit_state(loader);
  for (std::uint64_t step = 0; step < 50; ++step) {
    Model gradients = {formula(group.rank(), step, matrix_rank)};
    take_step(exchange, gradients, 0);
    const std::string key = prefix + "step" + std::to_string(step) + ".";
    if (!reference.count(key + "w1")) continue;
    for (const Parameter& parameter : model.parameters) {
      const auto ours = std::span(gradients[0]).subspan(parameter.offset, parameter.count);
      expect_close(ours, reference.at(key + parameter.name), key + parameter.name);
    }
  }
  if (group.rank() != 0) return;
  state = state_of(exchange);
  for (const std::string name : {"w1", "w2", "conv"})
    expect_close(state.at(name + "/v").values, reference.at(prefix + "error." + name), name);
}

TEST(TorchReference, PowerSgdIsThatOfTheHook) {
  const Reference reference = read_reference();
  for (const int matrix_rank : {1, 2, 3})
    run_local(2, [&](Group& group) { expect_like_the_hook(reference, group, matrix_rank); });
}

// The hooks round first and then divide, in 16 bits; we divide in 32 bits and round once. Halving
// is exact except for denormals, so for two workers the results are equal.
TEST(TorchReference, CastsAreThoseOfTheHooks) {
  const Reference reference = read_reference();
  for (const std::string scheme : {"fp16", "bf16"}) {
    run_local(2, [&](Group& group) {
      Exchange exchange(group, {model}, Config::parse(scheme));
      Model gradients = {formula(group.rank(), 0, 1)};
      take_step(exchange, gradients, 0);
      const auto& expected = reference.at(scheme + ".w1");
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const double unit = scheme == "fp16" ? 0x1p-11 : 0x1p-8;
        ASSERT_NEAR(gradients[0][i], expected[i], unit * std::abs(expected[i]) + 0x1p-24)
            << scheme << " element " << i;
      }
    });
  }
}

TEST(TorchReference, ExactSelectionIsTopk) {
  const Reference reference = read_reference();
  const auto& indices = reference.at("topk.indices");
  const auto& values = reference.at("topk.values");
  run_local(1, [&](Group& group) {
    Exchange exchange(group, {Bucket::single(0, "w1", 640)},
                      Config::parse("topk:density=0.05,values=f32,select=exact"));
    Model gradients = {formula(0, 0, 1)};
    gradients[0].resize(640);
    take_step(exchange, gradients, 0);
    std::vector<float> expected(640);
    for (std::size_t i = 0; i < indices.size(); ++i)
      expected[static_cast<std::size_t>(indices[i])] = values[i];
    EXPECT_TRUE(same_bits(gradients[0], expected));
  });
}

}  // namespace
}  // namespace thinwire
