// placed.h: floats in the memory of any device, as the host reads, writes and saves them. No torch
// here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/core/state.h"
#include "thinwire/core/view.h"

namespace thinwire::train {

// The stream in which the model computes: the default stream.
inline constexpr Stream models_stream{};

// A copy for the host. Waits for the device's default stream, in which the model computes.
std::vector<float> copy_to_host(const TensorView& from);
// Returns when the values are there. Later work of that stream sees them.
void copy_from_host(const TensorView& to, std::span<const float> values);

// Squared norms, in the same bits on every device. Its memory is allocated once.
class SquaredNorm {
 public:
  SquaredNorm(Device device, const std::vector<Bucket>& buckets);
  double of(const TensorView& values) const;  // waits, as copy_to_host() does

 private:
  Buffer scratch_, norm_;  // on a GPU
};

// visit_by_parameter() for memory of any device.
void visit_placed(StateVisitor& visitor, const Bucket& bucket, const std::string& suffix,
                  const TensorView& values, Share share);

}  // namespace thinwire::train
