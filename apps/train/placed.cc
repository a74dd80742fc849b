// placed.cc: host memory is used in place; that of a device is copied.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/placed.h"

#include <algorithm>

#include "thinwire/kernels/norm.h"

namespace thinwire::train {
namespace {

bool on_host(const TensorView& view) { return view.device.kind == Device::Kind::cpu; }

// Enqueued in the default stream, and waited for.
void copy_now(void* to, const void* from, std::size_t bytes, Device device) {
  const DeviceScope scope(device);
  copy_bytes(to, from, bytes, {});
  synchronize({});
}

}  // namespace

std::vector<float> copy_to_host(const TensorView& from) {
  std::vector<float> values(from.count);
  if (on_host(from))
    std::ranges::copy(from.f32(), values.begin());
  else
    copy_now(values.data(), from.data, std::span(values).size_bytes(), from.device);
  return values;
}

void copy_from_host(const TensorView& to, std::span<const float> values) {
  if (on_host(to))
    std::ranges::copy(values, to.f32().begin());
  else
    copy_now(to.data, values.data(), values.size_bytes(), to.device);
}

SquaredNorm::SquaredNorm(Device device, const std::vector<Bucket>& buckets) {
  if (device.kind == Device::Kind::cpu) return;
  std::size_t most = 0;
  for (const Bucket& bucket : buckets) most = std::max(most, bucket.elements());
  scratch_ = Buffer(place_on(device), norm_scratch(most) * sizeof(double), device);
  norm_ = Buffer(place_on(device), sizeof(double), device);
}

double SquaredNorm::of(const TensorView& values) const {
  if (on_host(values)) return squared_norm(values.f32().data(), values.count);
  double result = 0;
  const DeviceScope scope(values.device);
  squared_norm_cuda(values.dtype, values.data, values.count, scratch_.as<double>(),
                    norm_.as<double>(), {});
  copy_now(&result, norm_.data(), sizeof result, values.device);
  return result;
}

void visit_placed(StateVisitor& visitor, const Bucket& bucket, const std::string& suffix,
                  const TensorView& values, Share share) {
  if (on_host(values)) return visit_by_parameter(visitor, bucket, suffix, values.f32(), share);
  std::vector<float> copied = copy_to_host(values);
  visit_by_parameter(visitor, bucket, suffix, copied, share);
  copy_from_host(values, copied);
}

}  // namespace thinwire::train
