// process_laws.cc: every scheme of the registry under every law, between real processes.
// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/run_tests.h"
#include "tests/exchange/stalls.h"

namespace thinwire {
namespace {

using namespace testing;

Group* world = nullptr;  // set in main, before the tests run

// A scheme's memory does not depend on how its bytes are sent, and all laws test its variants on
// the local engine. So one variant of each scheme suffices here, except when sending is the point.
std::vector<Config> one_of_each_scheme() {
  std::vector<Config> configs;
  for (const Config& config : law_configs()) {
    if (configs.empty() || configs.back().scheme != config.scheme) configs.push_back(config);
  }
  return configs;
}

// Variants of a scheme differ in what is sent, not in the number of ranks.
TEST(Processes, ReplicasAreBitIdentical) {
  const bool variants = world->size() == 2 && !sanitized;
  for (const Config& config : variants ? law_configs() : one_of_each_scheme()) {
    law_replicas(*world, config, Shape::normal, 4);
    law_replicas(*world, config, Shape::heavy, 4);
  }
}

TEST(Processes, ConservationAndBoundedResidual) {
  for (const Config& config : one_of_each_scheme())
    law_conservation(*world, config, Shape::heavy, 50);
}

TEST(Processes, ResumeIsExact) {
  for (const Config& config : one_of_each_scheme()) law_resume(*world, config);
}

TEST(Processes, NonFiniteGradientSkipsTheStepOnAllRanks) {
  for (const Config& config : one_of_each_scheme()) law_nan(*world, config);
}

// Split-reduce and servers over real processes. tests/exchange/striped_test.cc tests every scheme.
TEST(Processes, StripedExchangesKeepTheLaws) {
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

TEST(Processes, StallsDoNotChangeBits) {
  for (const char* config : {"powersgd:rank=2", "csc", "terngrad"})
    law_stalls(*world, Config::parse(config));
}

TEST(Processes, AnotherConfigurationIsNamed) {
  if (world->size() < 2) return;
  const bool odd = world->rank() == 1;
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", 100)};
  const std::string text = error_of([&] {
    Exchange exchange(*world, buckets, Config::parse(odd ? "dgc:density=0.5" : "dgc:density=0.25"));
  });
  EXPECT_NE(text.find("rank 1 was set up otherwise"), std::string::npos) << text;
  EXPECT_NE(text.find("density=0.5"), std::string::npos) << text;
}

// Only rank 1 continues from a checkpoint.
TEST(Processes, AnotherStepIsNamed) {
  if (world->size() < 2) return;
  const std::vector<Bucket> buckets = {Bucket::single(0, "w", 100)};
  Exchange exchange(*world, buckets, Config::parse("randomk"));
  const State state = {{"exchange/step", {Share::replicated, {}, 3, false}}};
  StateLoader loader(state);
  if (world->rank() == 1) exchange.visit_state(loader);
  Model model = model_gradient(buckets, Shape::normal, 1);
  const std::string text = error_of([&] { take_step(exchange, model, 0); });
  EXPECT_NE(text.find("rank 0 begins at step 0, rank 1 at step 3"), std::string::npos) << text;
}

TEST(Processes, DifferingReplicasAreNamed) {
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
  return thinwire::testing::run_tests(argc, argv, thinwire::world);
}
