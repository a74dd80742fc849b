// virtual_laws.h: what a VirtualExchange must keep: averages, skipped steps, states and reports of
// every rank are those of N Exchanges, bit for bit.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/exchange/halves.h"
#include "thinwire/exchange/virtual_exchange.h"

namespace thinwire::testing {

struct VirtualCase {
  int workers = 1;
  Config config;
  ExchangeOptions options = {};
  std::vector<Bucket> buckets = awkward_buckets();

  int ranks() const { return workers + options.kind.servers; }
  std::string text() const {
    return config.str() + options.str() + ", " + name_of(buckets[0].dtype) + ", " +
           std::to_string(workers) + " workers";
  }
};

// The gradients of a rank in a step.
using VirtualGradient = std::function<Model(const VirtualCase& of, int rank, std::uint64_t step)>;

// What one rank has seen.
struct Seen {
  std::vector<Narrow> averages;  // by step
  std::vector<std::vector<std::byte>> states;
  std::vector<bool> skipped;
  Report report;
};

constexpr std::uint64_t virtual_steps = 8;

// In steps 2 and 5 one worker's are not finite, in the largest bucket or in the last.
inline Model awkward_gradient(const VirtualCase& of, int rank, std::uint64_t step) {
  const auto seed = step * 100 + static_cast<std::uint64_t>(rank);
  Model model = model_gradient(of.buckets, step % 2 ? Shape::heavy : Shape::normal, seed);
  const bool turn = rank == static_cast<int>(step) % of.workers;
  if (turn && step == 2) model[1][4000] = std::numeric_limits<float>::quiet_NaN();
  if (turn && step == 5) model[3][0] = -std::numeric_limits<float>::infinity();
  return model;
}

inline std::vector<Seen> seen_by_exchanges(const VirtualCase& of, const VirtualGradient& gradient) {
  std::vector<Seen> all(static_cast<std::size_t>(of.ranks()));
  run_local(of.ranks(), [&](Group& group) {
    Seen& seen = all[static_cast<std::size_t>(group.rank())];
    Exchange exchange(group, of.buckets, of.config, of.options);
    for (std::uint64_t step = 0; step < virtual_steps; ++step) {
      Narrow model = narrowed(of.buckets, gradient(of, group.rank(), step));
      seen.skipped.push_back(step_of(exchange, of.buckets, model).skipped);
      seen.averages.push_back(model);
      seen.states.push_back(serialize(state_of(exchange)));
    }
    seen.report = exchange.report();
  });
  return all;
}

inline State state_of(VirtualExchange& exchange, int rank) {
  State state;
  StateSaver saver(state);
  exchange.visit_state(rank, saver);
  return state;
}

// A step of all workers, whose models are overwritten. Buckets and workers come in another order in
// every step.
inline StepResult step_of(VirtualExchange& exchange, const std::vector<Bucket>& buckets,
                          std::vector<Narrow>& models, std::uint64_t shuffle) {
  const std::size_t count = buckets.size() * models.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = (i + shuffle) % count, worker = at % models.size();
    const Bucket& bucket = buckets[at / models.size()];
    exchange.submit(static_cast<int>(worker), bucket.id, view_of(bucket, models[worker]));
  }
  return exchange.finish();
}

inline std::vector<Narrow> of_all_workers(const VirtualCase& of, const VirtualGradient& gradient,
                                          std::uint64_t step) {
  std::vector<Narrow> models;
  for (int worker = 0; worker < of.workers; ++worker)
    models.push_back(narrowed(of.buckets, gradient(of, worker, step)));
  return models;
}

inline void expect_same_report(const Report& report, const Report& expected,
                               const std::string& what) {
  EXPECT_EQ(report.steps, expected.steps) << what;
  EXPECT_EQ(report.skipped, expected.skipped) << what;
  EXPECT_EQ(report.payload_bytes, expected.payload_bytes) << what;
  EXPECT_EQ(report.dense_bytes, expected.dense_bytes) << what;
  EXPECT_EQ(report.traffic.sent, expected.traffic.sent) << what;
  EXPECT_EQ(report.traffic.received, expected.traffic.received) << what;
  EXPECT_EQ(report.traffic.collectives, expected.traffic.collectives) << what;
}

// Returns the number of steps that were skipped.
inline std::uint64_t law_virtual(const VirtualCase& of,
                                 const VirtualGradient& gradient = awkward_gradient) {
  const std::vector<Seen> expected = seen_by_exchanges(of, gradient);
  VirtualExchange exchange(of.workers, of.buckets, of.config, of.options);
  EXPECT_EQ(exchange.ranks(), of.ranks());
  for (std::uint64_t step = 0; step < virtual_steps; ++step) {
    const std::string what = of.text() + ", step " + std::to_string(step);
    std::vector<Narrow> models = of_all_workers(of, gradient, step);
    const StepResult result = step_of(exchange, of.buckets, models, step);
    EXPECT_EQ(result.step, step) << what;
    EXPECT_EQ(result.skipped, expected[0].skipped[step]) << what;
    EXPECT_TRUE(models[0] == expected[0].averages[step]) << what;
    for (int rank = 0; rank < of.ranks(); ++rank) {
      const Seen& seen = expected[static_cast<std::size_t>(rank)];
      EXPECT_TRUE(serialize(state_of(exchange, rank)) == seen.states[step])
          << what << ", state of rank " << rank;
    }
    if (::testing::Test::HasFailure()) return 0;
  }
  for (int rank = 0; rank < of.ranks(); ++rank)
    expect_same_report(exchange.report(rank), expected[static_cast<std::size_t>(rank)].report,
                       of.text() + ", rank " + std::to_string(rank));
  return exchange.report().skipped;
}

}  // namespace thinwire::testing
