// laws.cc: every scheme of the registry under every law, on the MPI engine: real processes under mpirun.
// SPDX-License-Identifier: Apache-2.0
#include "tests/laws.h"

#include <chrono>

#include "thinwire/comm/mpi/mpi.h"

namespace thinwire {
namespace {

using namespace testing;

Group* world = nullptr;  // set in main, before the tests run

TEST(Mpi, ReplicasAreBitIdentical) {
  for (const Config& config : law_configs()) {
    law_replicas(*world, config, Shape::normal, 4);
    law_replicas(*world, config, Shape::heavy, 4);
  }
}

TEST(Mpi, ConservationAndBoundedResidual) {
  for (const Config& config : law_configs()) law_conservation(*world, config, Shape::heavy, 100);
}

TEST(Mpi, ResumeIsExact) {
  for (const Config& config : law_configs()) law_resume(*world, config);
}

TEST(Mpi, NonFiniteGradientSkipsTheStepOnAllRanks) {
  for (const Config& config : law_configs()) law_nan(*world, config);
}

// Split-reduce and servers over real processes; tests/exchange/striped_test.cc tries every scheme.
TEST(Mpi, StripedExchangesKeepTheLaws) {
  for (const char* text : {"split", "server:1", "server:3"}) {
    const ExchangeKind kind = ExchangeKind::parse(text);
    if (kind.workers(world->size()) < 1) continue;
    for (const char* scheme : {"topk:density=0.02", "dgc:density=0.05,warmup=8,clip=1"}) {
      const Config config = Config::parse(scheme);
      law_replicas(*world, config, Shape::heavy, 4, kind);
      law_conservation(*world, config, Shape::heavy, 50, kind);
      law_resume(*world, config, kind);
      law_nan(*world, config, kind);
    }
  }
}

TEST(Mpi, AnotherConfigurationIsNamed) {
  if (world->size() < 2) return;
  const bool odd = world->rank() == 1;
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", 100)};
  const std::string text = error_of([&] {
    Exchange exchange(*world, buckets, Config::parse(odd ? "dgc:density=0.5" : "dgc:density=0.25"));
  });
  EXPECT_NE(text.find("rank 1 was set up otherwise"), std::string::npos) << text;
  EXPECT_NE(text.find("density=0.5"), std::string::npos) << text;
}

TEST(Mpi, DifferingReplicasAreNamed) {
  if (world->size() < 2) return;
  std::vector<float> same(10, 1.0f), other(10, world->rank() == 1 ? 2.0f : 1.0f);
  const std::vector<Replica> replicas = {{"conv.weight", std::as_bytes(std::span(same))},
                                         {"conv.bias", std::as_bytes(std::span(other))}};
  const std::string text = error_of([&] { check_replicas(*world, replicas); });
  EXPECT_NE(text.find("'conv.bias' of rank 1"), std::string::npos) << text;
}

}  // namespace
}  // namespace thinwire

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const auto body = [](thinwire::Group& group) {
    thinwire::world = &group;
    return RUN_ALL_TESTS();
  };
  return thinwire::run_mpi(argc, argv, body, {.timeout = std::chrono::seconds(20)});
}
