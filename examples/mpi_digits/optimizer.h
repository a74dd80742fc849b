// optimizer.h: SGD with momentum and weight decay, and the rule for schemes with momentum inside.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "thinwire/thinwire.h"

namespace digits {

class Optimizer {
 public:
  // DGC accumulates momentum before it compresses, and momentum here would count it twice. For
  // other schemes momentum is applied to the average, as in plain SGD.
  Optimizer(const thinwire::Config& config, float decay, std::size_t size) : decay_(size) {
    rule_.decay = decay;
    const thinwire::Scheme& scheme = thinwire::find_scheme(config.scheme);
    if (scheme.momentum) {
      const thinwire::Options options(config, scheme.options);
      rule_.momentum = static_cast<float>(options.number_from("momentum", 0, 1));
      rule_.nesterov = options.flag("nesterov");
    } else {
      velocity_.resize(size);
    }
  }

  void step(float rate, std::span<float> average, std::span<float> weights) {
    for (std::size_t i = 0; i < velocity_.size(); ++i) {
      average[i] = velocity_[i] = rule_.momentum * velocity_[i] + average[i];
    }
    rule_.rate = rate;
    thinwire::sgd_step(rule_, average.data(), weights.data(), decay_.data(), weights.size());
  }

  void visit_state(thinwire::StateVisitor& visitor) {
    visitor.tensor("optimizer/decay", decay_, thinwire::Share::replicated);
    visitor.tensor("optimizer/velocity", velocity_, thinwire::Share::replicated);
  }

 private:
  thinwire::SgdRule rule_;
  std::vector<float> decay_;     // momentum of the weight decay, which is never sent
  std::vector<float> velocity_;  // of the averaged gradient; empty if the scheme owns the momentum
};

// Rises over the first tenth of the steps, then falls linearly to zero.
inline float rate_at(std::uint64_t step, std::uint64_t steps, double peak) {
  const double done = (static_cast<double>(step) + 0.5) / static_cast<double>(steps);
  return static_cast<float>(peak * std::min(done / 0.1, (1 - done) / 0.9));
}

}  // namespace digits
