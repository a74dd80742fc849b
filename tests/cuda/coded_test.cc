// coded_test.cc: the elementwise schemes on a GPU against the CPU: the same frames, averages and
// memory, bit for bit, whatever the options, sizes and values.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/replay.h"
#include "tests/cuda/twins.h"

namespace thinwire {
namespace {

// The variants of the registry, and options that choose other kernels: long groups.
std::vector<std::string> quantisers() {
  std::vector<std::string> all = {
      "onebit:group=20000",
      "onebit:memory=none,group=700",
      "efsign:group=9000,nesterov=on",
      "efsign:group=20000,memory=residual",
      "int8:block=8192",
      "int8:block=2048,rounding=random,memory=momentum,nesterov=on",
      "qsgd:bucket=8192,bits=5",
      "qsgd:bucket=1088,bits=1,memory=residual",
      "qsgd:bits=2,bucket=1024,memory=momentum",
      "threshold:tau=0.5,quota=bucket",
      "threshold:tau=0.0001,memory=momentum,nesterov=on",  // dense
      "threshold:density=1,memory=none",
      "threshold:density=0.001,memory=momentum",
  };
  for (const char* scheme :
       {"onebit", "efsign", "int8", "qsgd", "natural", "signum", "terngrad", "threshold"})
    for (const std::string& config : configs_of(scheme))
      if (config.find("form=coded") == std::string::npos) all.push_back(config);
  return all;
}

class CodedTwins : public TwinTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(CodedTwins, Sizes) { law_sizes(GetParam()); }
TEST_P(CodedTwins, Shapes) { law_shapes(GetParam()); }
TEST_P(CodedTwins, UnalignedGradients) { law_unaligned(GetParam()); }
TEST_P(CodedTwins, GradientsOfHalves) { law_halves(GetParam()); }
TEST_P(CodedTwins, OddValues) { law_odd_values(GetParam()); }
TEST_P(CodedTwins, VoidSteps) { law_void_steps(GetParam()); }
TEST_P(CodedTwins, Damage) {
  if (GetParam().find("travel=sum") == std::string::npos) law_damage(GetParam());
}
TEST_P(CodedTwins, DamageOfWholeTiles) {
  if (GetParam().find("travel=sum") == std::string::npos) law_damage(GetParam(), 21'003);
}
TEST_P(CodedTwins, CapturedAsAGraph) {
  expect_same_when_captured(GetParam(), layers(30'000), stream);
}
TEST_P(CodedTwins, ManyRanks) { run(GetParam(), layers(10'000), 9, 2, Shape::heavy); }

INSTANTIATE_TEST_SUITE_P(, CodedTwins, ::testing::ValuesIn(quantisers()), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
});

class LargeTwins : public TwinTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(LargeTwins, EqualTheCpu) {
  run(GetParam(), Bucket::single(0, "w", (std::size_t{1} << 24) + 3), 2, 2, Shape::heavy);
}

INSTANTIATE_TEST_SUITE_P(, LargeTwins,
                         ::testing::Values("onebit", "efsign", "efsign:group=0", "int8", "qsgd",
                                           "natural", "signum", "terngrad", "threshold"));

}  // namespace
}  // namespace thinwire
