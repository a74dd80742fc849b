// later.cc: a copy and an event.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/later.h"

#include <ATen/ops/empty.h>

#include "thinwire/comm/c10d/device_stream.h"
#include "thinwire/core/poll.h"

namespace thinwire::ddp {

Later::Later(c10::Device device) : device_(device) {
  const bool cpu = device.is_cpu();
  copy_ = at::empty({1}, at::TensorOptions().dtype(at::kFloat).pinned_memory(!cpu));
  if (!cpu) taken_.emplace(device.type());
}

void Later::take(const at::Tensor& number) {
  copy_.copy_(number.detach().reshape({1}), /*non_blocking=*/true);
  if (taken_) taken_->record(torch_engine::current_stream(device_));
}

bool Later::await(std::chrono::milliseconds limit) const {
  return poll([this] { return !taken_ || taken_->query(); }, limit);
}

double Later::value() const {
  if (taken_) taken_->synchronize();
  return static_cast<double>(*copy_.const_data_ptr<float>());
}

}  // namespace thinwire::ddp
