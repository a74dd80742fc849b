// stability_test.cc: the largest stable learning rate under each correction. On a
// quadratic with curvature lambda, training with momentum m converges below a limit of
// eta*lambda and diverges above it. The limits are those of the workers' deviations from
// their mean: docs/notebook/delay.md.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tests/gradients.h"
#include "thinwire/comm/local.h"
#include "thinwire/delay/published.h"

namespace thinwire {
namespace {

struct Setting {
  const char* correction;
  double momentum;
  std::uint64_t delay;
  double stable, unstable;  // eta * lambda below and above the limit
};

void PrintTo(const Setting& setting, std::ostream* out) {
  *out << setting.correction << ", momentum " << setting.momentum << ", delay " << setting.delay;
}

// A worker's weight after `steps` steps on f(w) = w^2 / 2. The first gradient pushes the two
// workers apart, because delay makes deviations unstable.
double end_of(const Setting& setting, double rate, int steps) {
  double largest = 0;
  run_local(2, [&](Group& group) {
    const std::vector<Bucket> buckets = {Bucket::single(0, "w", 1)};
    std::vector<float> weight = {1}, velocity = {0}, gradient = {0}, replayed = {0};
    DelayOptions options;
    options.delay = setting.delay;
    options.parse_correction(setting.correction);
    options.momentum = setting.momentum;
    const auto move = [&](float g, float& v, float& w) {
      v = static_cast<float>(setting.momentum) * v + g;
      w -= static_cast<float>(rate) * v;
    };
    PublishedAverage delayed(
        group, buckets, {weight}, Config::parse("dense"), options, {},
        [&](std::uint64_t, std::size_t, std::span<const float> mean, std::span<float> anchor) {
          move(mean[0], replayed[0], anchor[0]);
        });
    const double push = (group.rank() == 0 ? 0.5 : -0.5) / rate;
    for (int step = 0; step < steps; ++step) {
      gradient[0] = std::clamp(weight[0], -1e12f, 1e12f);
      if (step == 0) gradient[0] += static_cast<float>(push);
      if (options.correction == Correction::published) delayed.correct({gradient});
      move(gradient[0], velocity[0], weight[0]);
      delayed.finish_step();
    }
    if (group.rank() == 0) largest = std::abs(weight[0]);
  });
  return largest;
}

class Stability : public ::testing::TestWithParam<Setting> {};

TEST_P(Stability, ConvergesBelowAndDivergesAbove) {
  const Setting& setting = GetParam();
  const int steps = 3000;
  EXPECT_LT(end_of(setting, setting.stable, steps), 1e-2);
  EXPECT_GT(end_of(setting, setting.unstable, steps), 1e2);
}

INSTANTIATE_TEST_SUITE_P(
    Corrections, Stability,
    ::testing::Values(
        Setting{"ledger", 0, 20, 0.9, 1.1}, Setting{"ledger", 0, 5, 0.9, 1.1},
        Setting{"ledger", 0.9, 20, 0.021, 0.028}, Setting{"ledger", 0.9, 10, 0.06, 0.08},
        Setting{"ledger", 0.9, 5, 0.18, 0.25}, Setting{"published", 0.9, 20, 0.022, 0.028},
        Setting{"published", 0.9, 10, 0.062, 0.078}, Setting{"published", 0.9, 5, 0.2, 0.24},
        Setting{"published", 0, 20, 0.9, 1.1}, Setting{"pull", 0.9, 20, 3.4, 4.0},
        Setting{"pull", 0.9, 5, 3.4, 4.0}, Setting{"pull", 0, 20, 1.8, 2.2},
        Setting{"soft", 0.9, 20, 3.7, 3.9}, Setting{"soft", 0.9, 5, 3.7, 4.4},
        Setting{"soft", 0, 20, 1.9, 2.1}, Setting{"soft", 0, 5, 1.9, 2.8},
        Setting{"soft:share=0.5", 0.9, 20, 5.9, 6.2}, Setting{"soft:share=0.5", 0.9, 5, 5.7, 7.6},
        Setting{"soft:share=0.5", 0, 20, 3.7, 3.9}, Setting{"soft:share=0.5", 0, 5, 3.1, 3.4},
        Setting{"soft:share=1", 0.9, 20, 2.9, 3.8}, Setting{"soft:share=1", 0, 20, 1.8, 2.2},
        Setting{"none", 0, 20, 0.06, 0.1}, Setting{"none", 0.9, 20, 0.004, 0.02}));

}  // namespace
}  // namespace thinwire
