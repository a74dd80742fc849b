// codec.h: a quantiser: converts the floats of one bucket to bytes and back. It keeps no gradients.
// coded.h adds the memory (none, residual, momentum) and the frame, so every codec works with every
// memory.
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
  bool finite = true;  // the gradient was finite, and with a residual within the limit
};

class Codec {
 public:
  virtual ~Codec() = default;

  // The size of the payload. Where it depends on the data, the largest size.
  virtual std::size_t payload_bytes() const = 0;

  // Quantises x = gradient + residual (x = gradient where residual is empty) into `out`, which is
  // payload_bytes() long, and sets residual to x minus what receivers will decode. It takes one
  // pass, so that schemes run at memory speed. `seed` seeds the random draws of this step; it
  // differs between ranks, steps and buckets. When an element of the gradient is beyond the limit
  // (kernels/limit.h), the result is not `finite`, all elements that share its scale are coded as
  // zeros, and their residual adds the elements within the limit.
  virtual Coded encode(std::span<const float> gradient, std::span<float> residual,
                       std::uint64_t seed, Bytes out) = 0;

  // target += share * the decoded payload. The bytes are hostile: it checks everything and never
  // throws. On an error `target` is unspecified.
  virtual Status add(ConstBytes payload, float share, std::span<float> target) const = 0;

  // target = share * the sum of all decoded payloads, added in order: the same bits as calling
  // add() for each of them on zeros. On an error `culprit` is the index of the payload. A codec
  // that can start in the middle of a payload is faster than this (ranged.h).
  virtual Status average(std::span<const ConstBytes> payloads, float share, std::span<float> target,
                         int& culprit) const {
    std::fill(target.begin(), target.end(), 0.0f);
    for (culprit = 0; culprit < static_cast<int>(payloads.size()); ++culprit) {
      const Status status = add(payloads[static_cast<std::size_t>(culprit)], share, target);
      if (!status.ok()) return status;
    }
    return {};
  }

  // The state that a codec adapts from step to step, such as a threshold; forget() restores the one
  // before the last encode().
  virtual void visit_state(StateVisitor&) {}
  virtual void forget() {}
};

}  // namespace thinwire
