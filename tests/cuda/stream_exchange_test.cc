// stream_exchange_test.cc: the exchange of device memory on a GPU, over groups of the host and
// alone: the bits and states of an Exchange on the CPU.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/stream_exchange.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/exchange/halves.h"

namespace thinwire::testing {
namespace {

constexpr Device first_gpu{Device::Kind::cuda, 0};

class StreamsOnGpu : public ::testing::TestWithParam<Config> {
 protected:
  void SetUp() override {
    if (has_cuda()) return;
    if (std::getenv("THINWIRE_GPU") != nullptr) FAIL() << "this machine has no GPU";
    GTEST_SKIP() << "this machine has no GPU";
  }
  const Config config_ = GetParam();
};

TEST_P(StreamsOnGpu, OverTheHostHaveTheBitsOfTheCpu) {
  for (const int ranks : {2, 4})
    run_local(ranks, [&](Group& group) {
      law_same_as_exchange(group, config_, {group, nullptr, first_gpu});
    });
}

TEST_P(StreamsOnGpu, AloneHaveTheBitsOfTheCpu) {
  run_local(1, [&](Group& group) {
    const auto data = make_solo_stream_group(first_gpu);
    law_same_as_exchange(group, config_, {group, data.get(), first_gpu});
  });
}

TEST_P(StreamsOnGpu, TakeUpTheStateOfTheCpu) {
  run_local(2, [&](Group& group) { law_state_moves(group, config_, {group, nullptr, first_gpu}); });
}

TEST_P(StreamsOnGpu, InStripesHaveTheBitsOfTheCpu) {
  for (const ExchangeKind& kind : striped_kinds(config_)) {
    run_local(3, [&](Group& group) {
      const StreamLink link{group, nullptr, first_gpu};
      law_same_as_exchange(group, config_, link, {.kind = kind});
      law_state_moves(group, config_, link, {.kind = kind});
    });
  }
}

TEST_P(StreamsOnGpu, FusedHaveTheBitsOfTheCpu) {
  run_local(2, [&](Group& group) {
    law_same_as_exchange(group, config_, {group, nullptr, first_gpu}, {.fuse_bytes = 9000});
  });
}

TEST_P(StreamsOnGpu, OfHalvesHaveTheBitsOfTheCpu) {
  for (const Types& all : types)
    run_local(2, [&](Group& group) {
      law_halves(group, config_, all, {group, nullptr, first_gpu});
    });
}

TEST_P(StreamsOnGpu, OfHalvesInStripesHaveTheBitsOfTheCpu) {
  for (const ExchangeKind& kind : striped_kinds(config_))
    run_local(3, [&](Group& group) {
      law_halves(group, config_, types[2], {group, nullptr, first_gpu}, {.kind = kind});
    });
}

INSTANTIATE_TEST_SUITE_P(Registry, StreamsOnGpu, ::testing::ValuesIn(stream_configs()),
                         config_name);

TEST(StreamExchangeOnGpu, DamageNamesTheRankAndLosesNothing) {
  if (!has_cuda()) GTEST_SKIP() << "this machine has no GPU";
  run_local(3, [](Group& group) { law_damage(group, first_gpu); });
}

TEST(StreamExchangeOnGpu, SkipsAnAverageThatF16CannotHold) {
  if (!has_cuda()) GTEST_SKIP() << "this machine has no GPU";
  for (const int ranks : {1, 2})
    run_local(ranks, [](Group& group) { law_overflow_on({group, nullptr, first_gpu}); });
}

}  // namespace
}  // namespace thinwire::testing
