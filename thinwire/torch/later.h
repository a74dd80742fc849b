// later.h: reads one number of a device later. A copy to pinned memory is enqueued, and the host
// waits only for that copy, not for work enqueued after it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace thinwire::ddp {

class Later {
 public:
  explicit Later(c10::Device device);

  // `number` is a tensor of one float32, read when the current stream has written it.
  void take(const at::Tensor& number);

  // False if it has not arrived within the limit.
  bool await(std::chrono::milliseconds limit) const;
  // The number that was taken last. Waits for it.
  double value() const;

 private:
  c10::Device device_;
  at::Tensor copy_;
  std::optional<c10::Event> taken_;  // none on the CPU
};

}  // namespace thinwire::ddp
