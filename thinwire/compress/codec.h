// codec.h: a quantiser: the floats of one bucket to bytes and back. It keeps no gradient of its own;
// coded.h puts memory (none, residual, momentum) and frame around it, so every codec combines with
// every memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "thinwire/core/state.h"
#include "thinwire/core/status.h"
#include "thinwire/core/view.h"

namespace thinwire {

struct Coded {
  std::size_t bytes = 0;
  bool finite = true;  // every x was
};

class Codec {
 public:
  virtual ~Codec() = default;

  // The payload's bytes: exactly, or at most where they depend on the data.
  virtual std::size_t payload_bytes() const = 0;

  // Quantises x = gradient + residual, or x = gradient where residual is empty, into `out`
  // (payload_bytes() long), and leaves in residual x minus what receivers will decode: one pass, so
  // that schemes run at the speed of memory. `seed` starts this step's stream of random draws, and
  // differs between ranks, steps and buckets. Where x is not finite the codec says so; the group of
  // elements that share its scale is then coded as zeros and keeps its residual.
  virtual Coded encode(std::span<const float> gradient, std::span<float> residual,
                       std::uint64_t seed, Bytes out) = 0;

  // target += share * what the payload says. Hostile bytes: checks everything, throws nothing. On an
  // error `target` is unspecified.
  virtual Status add(ConstBytes payload, float share, std::span<float> target) const = 0;

  // What it steers by from step to step, where it does (a threshold).
  virtual void visit_state(StateVisitor&) {}
};

}  // namespace thinwire
