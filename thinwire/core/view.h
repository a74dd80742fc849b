// view.h: gradients as we see them: one flat bucket, and the parameters that lie in it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "thinwire/core/device.h"
#include "thinwire/core/dtype.h"

namespace thinwire {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// Memory of a caller: never owned, never kept longer than the call or, for an exchange, than the
// step.
struct TensorView {
  void* data = nullptr;
  std::size_t count = 0;  // elements
  DType dtype = DType::f32;
  Device device;

  TensorView() = default;
  TensorView(std::span<float> values) : data(values.data()), count(values.size()) {}
  TensorView(std::vector<float>& values) : TensorView(std::span(values)) {}
  TensorView(void* memory, std::size_t elements, DType type, Device where)
      : data(memory), count(elements), dtype(type), device(where) {}

  // The elements as floats. Only for f32 on the CPU; callers have checked (see require_f32_cpu).
  std::span<float> f32() const { return {static_cast<float*>(data), count}; }
};

// Throws when the view is not f32 on the CPU or has another length; `who` names scheme and bucket
// in the text.
void require_f32_cpu(const TensorView& view, std::size_t count, const std::string& who);

// One parameter inside a bucket. State (momentum, residual) is saved under its name, so that it
// outlives the bucketing.
struct Parameter {
  std::string name;
  std::size_t offset = 0;  // first element in the bucket
  std::size_t count = 0;
  std::vector<std::int64_t> shape;  // empty: one dimension of `count`
};

// The fixed description of one bucket. Parameters are in order, without gaps or overlap, and fill
// it.
struct Bucket {
  std::uint16_t id = 0;
  std::vector<Parameter> parameters;

  std::size_t elements() const {
    return parameters.empty() ? 0 : parameters.back().offset + parameters.back().count;
  }
  // A bucket of one parameter.
  static Bucket single(std::uint16_t id, std::string name, std::size_t count) {
    return {id, {{std::move(name), 0, count, {}}}};
  }
};

// Throws unless the parameters are in order, named apart, gapless, and the bucket has fewer than
// 2^32 elements.
void validate(const Bucket& bucket);

// Who we are among the workers of a job, and what a compressor is wanted for there.
struct Site {
  int rank = 0;
  int world = 1;
  bool sums = true;   // false: the exchange has no dense sum to fall back to, only frames travel
  bool sends = true;  // false: only decodes, so it needs no memory
};

}  // namespace thinwire
