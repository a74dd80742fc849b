// view.cc: checks of what callers hand in.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/view.h"

#include <limits>
#include <set>

#include "thinwire/core/error.h"

namespace thinwire {

namespace {

std::string name_of(Device device) {
  return device.kind == Device::Kind::cpu ? "the CPU" : "cuda:" + std::to_string(device.index);
}

void require_count(const TensorView& view, std::size_t count, const std::string& who) {
  if (view.count != count) {
    fail(who, ": expected ", count, " elements, got ", view.count,
         "; pass the bucket with the layout it was set up with");
  }
}

}  // namespace

void require_gradient(const TensorView& view, const Bucket& bucket, Device device,
                      const std::string& who) {
  if (view.device != device) {
    fail(who, ": expected memory of ", name_of(device), ", got memory of ", name_of(view.device),
         "; pass gradients of the device it was set up with");
  }
  if (view.dtype != bucket.dtype) {
    fail(who, ": expected ", name_of(bucket.dtype), " elements, got ", name_of(view.dtype),
         "; pass gradients of the type it was set up with");
  }
  require_count(view, bucket.elements(), who);
}

void require_f32_cpu(const TensorView& view, std::size_t count, const std::string& who) {
  if (view.device.kind != Device::Kind::cpu) {
    fail(who, ": expected memory of the CPU, got memory of cuda:", view.device.index,
         "; this build has no CUDA kernels for it: copy the bucket to the CPU first");
  }
  if (view.dtype != DType::f32) {
    fail(who, ": expected f32 elements, got ", name_of(view.dtype), "; convert the bucket first");
  }
  require_count(view, count, who);
}

void validate(const Bucket& bucket) {
  if (!is_gradient(bucket.dtype)) {
    fail("bucket ", bucket.id, ": gradients are f32, f16 or bf16, got ", name_of(bucket.dtype),
         "; convert them first");
  }
  std::size_t expected = 0;
  std::set<std::string> names;
  for (const Parameter& parameter : bucket.parameters) {
    if (parameter.offset != expected) {
      fail("bucket ", bucket.id, ", parameter '", parameter.name, "': expected offset ", expected,
           ", got ", parameter.offset, "; list parameters in order, without gaps");
    }
    if (!names.insert(parameter.name).second) {
      fail("bucket ", bucket.id, ": parameter '", parameter.name,
           "' is listed twice; names must differ");
    }
    expected += parameter.count;
    if (expected > std::numeric_limits<std::uint32_t>::max()) {
      fail("bucket ", bucket.id, ", parameter '", parameter.name,
           "': a bucket holds fewer than 2^32 elements, got ", expected, "; split it");
    }
  }
}

}  // namespace thinwire
