// codec.h: a quantiser: the floats of one bucket to bytes and back. It keeps no gradient of its own;
// coded.h puts memory (none, residual, momentum) and frame around it, so every codec combines with
// every memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "thinwire/core/state.h"
#include "thinwire/core/status.h"
#include "thinwire/core/view.h"

namespace thinwire {

struct Coded {
  std::size_t bytes = 0;
  bool finite = true;  // the gradient was, and with a residual within the limit
};

class Codec {
 public:
  virtual ~Codec() = default;

  // The payload's bytes: exactly, or at most where they depend on the data.
  virtual std::size_t payload_bytes() const = 0;

  // Quantises x = gradient + residual, or x = gradient where residual is empty, into `out`
  // (payload_bytes() long), and leaves in residual x minus what receivers will decode: one pass, so
  // that schemes run at the speed of memory. `seed` starts this step's stream of random draws, and
  // differs between ranks, steps and buckets. Where an element of the gradient is beyond the limit
  // (kernels/limit.h) the codec says so: the group of elements that share its scale is coded as
  // zeros, and its residual takes in what is within the limit.
  virtual Coded encode(std::span<const float> gradient, std::span<float> residual,
                       std::uint64_t seed, Bytes out) = 0;

  // target += share * what the payload says. Hostile bytes: checks everything, throws nothing. On an
  // error `target` is unspecified.
  virtual Status add(ConstBytes payload, float share, std::span<float> target) const = 0;

  // target = share * what all the payloads say together, added in their order: the bits of add()
  // one after the other into zeros. On an error `culprit` is the payload's place. A codec that can
  // start in the middle of a payload does better than this (ranged.h).
  virtual Status average(std::span<const ConstBytes> payloads, float share, std::span<float> target,
                         int& culprit) const {
    std::fill(target.begin(), target.end(), 0.0f);
    for (culprit = 0; culprit < static_cast<int>(payloads.size()); ++culprit) {
      const Status status = add(payloads[static_cast<std::size_t>(culprit)], share, target);
      if (!status.ok()) return status;
    }
    return {};
  }

  // What it steers by from step to step, where it does (a threshold); and back to what that was
  // before the last encode().
  virtual void visit_state(StateVisitor&) {}
  virtual void forget() {}
};

}  // namespace thinwire
