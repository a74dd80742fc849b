// view.h: views of a caller's gradients: a flat bucket and the parameters in it.
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

// Memory that the caller owns. It is used during the call only; an Exchange uses it until the step
// ends.
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

  // The elements as floats. Only for f32 on the CPU: check with require_f32_cpu() first.
  std::span<float> f32() const { return {static_cast<float*>(data), count}; }
};

// Throws when the view is not f32 on the CPU or has another length. `who` names the scheme and the
// bucket in the error.
void require_f32_cpu(const TensorView& view, std::size_t count, const std::string& who);

// One parameter inside a bucket. State (momentum, residual) is saved under its name, so that it
// stays valid when the parameters are bucketed differently.
struct Parameter {
  std::string name;
  std::size_t offset = 0;  // first element in the bucket
  std::size_t count = 0;
  std::vector<std::int64_t> shape;  // empty: one dimension of `count`
};

// The description of one bucket, which never changes. Its parameters are in order and fill it
// without gaps or overlap.
struct Bucket {
  std::uint16_t id = 0;
  std::vector<Parameter> parameters;
  DType dtype = DType::f32;  // of its gradients: f32, f16 or bf16; memory is f32 in any case

  std::size_t elements() const {
    return parameters.empty() ? 0 : parameters.back().offset + parameters.back().count;
  }
  // A bucket of one parameter.
  static Bucket single(std::uint16_t id, std::string name, std::size_t count,
                       DType dtype = DType::f32) {
    return {id, {{std::move(name), 0, count, {}}}, dtype};
  }
};

// Throws unless the parameters are in order, have different names and leave no gaps, the bucket has
// fewer than 2^32 elements, and its type is one of gradients.
void validate(const Bucket& bucket);

// A worker's place in the job, and what its compressor must be able to do.
struct Site {
  int rank = 0;
  int world = 1;
  bool sums = true;   // false: the exchange cannot fall back to a dense sum; only frames travel
  bool sends = true;  // false: the compressor only decodes, so it needs no memory
  Device device{};    // where gradients, memory and payloads are
};

// Throws unless the view is a gradient of this bucket: its type, its length, and on this device.
void require_gradient(const TensorView& view, const Bucket& bucket, Device device,
                      const std::string& who);

}  // namespace thinwire
