// stalls.h: the law that a scheme of several rounds gives the same bits however its ranks stall.
// PyTorch's PowerSGD hook violates it: it starts second rounds from callbacks, whose order differs
// between ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <thread>

#include "tests/laws.h"

namespace thinwire::testing {

inline std::vector<Bucket> buckets_with_matrices() {
  std::vector<Bucket> buckets;
  for (std::uint16_t b = 0; b < 7; ++b) {
    const std::string name = "layer" + std::to_string(b);
    const std::int64_t rows = 16 + 3 * b, cols = 40 - 2 * b;
    const auto count = static_cast<std::size_t>(rows * cols);
    buckets.push_back(
        {b, {{name + ".weight", 0, count, {rows, cols}}, {name + ".bias", count, 5, {}}}});
  }
  return buckets;
}

// The average of the last step. With stalls, every rank waits at random before each submit, and
// submits in its own order.
inline Model run_with(Group& group, const Config& config, bool stalls, std::uint64_t steps) {
  const auto buckets = buckets_with_matrices();
  Exchange exchange(group, buckets, config);
  Model model;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const std::uint64_t seed = seed_of(group, step);
    model = model_gradient(buckets, Shape::normal, seed);
    for (std::size_t i = 0; i < buckets.size(); ++i) {
      const std::size_t b = stalls ? (i * 3 + seed) % buckets.size() : i;
      if (stalls)
        std::this_thread::sleep_for(std::chrono::microseconds(random_below(seed, i, 3000)));
      exchange.submit(static_cast<std::uint16_t>(b), std::span(model[b]));
    }
    EXPECT_FALSE(exchange.finish().skipped);
  }
  return model;
}

inline void law_stalls(Group& group, const Config& config) {
  const Model expected = run_with(group, config, false, 12);
  const Model stalled = run_with(group, config, true, 12);
  std::vector<Replica> replicas;
  for (std::size_t b = 0; b < stalled.size(); ++b) {
    ASSERT_TRUE(same_bits(stalled[b], expected[b])) << config.str() << " bucket " << b;
    replicas.push_back({"average" + std::to_string(b), std::as_bytes(std::span(stalled[b]))});
  }
  ASSERT_NO_THROW(check_replicas(group, replicas));
}

}  // namespace thinwire::testing
