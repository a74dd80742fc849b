// device_backend.h: a backend whose tensors live on a device, and the copies to and from it.
// Internal to the engine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>

#include <atomic>

#include "thinwire/comm/c10d/world.h"

namespace thinwire::torch_engine {

// Aborts whatever the backend waits for. The backend's own abort may fail or block in turn.
void end(const c10::intrusive_ptr<c10d::Backend>& backend);

// A tensor over host bytes, which must outlive it.
at::Tensor host_tensor(const std::byte* data, std::size_t bytes);

// Copies run in a stream of our own, so that they do not wait for the model's kernels. The driver
// stages memory that is not pinned.
class DeviceBackend {
 public:
  DeviceBackend(c10::intrusive_ptr<c10d::Backend> backend, c10::Device device);
  ~DeviceBackend();
  DeviceBackend(const DeviceBackend&) = delete;
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  // Runs body(backend) in our stream. An exception there means that this collective is lost.
  template <typename Body>
  void use(const World& world, Body body) {
    try {
      const c10::StreamGuard guard(stream_);
      body(*backend_);
    } catch (const std::exception& error) {
      throw Lost{world.rank(), error.what()};
    }
  }

  // Device memory of this size.
  at::Tensor room(std::size_t bytes) const;

  // Aborts what the device waits for, now. It would wait forever, and so would ranks that wait for
  // us. Any thread may call this.
  void break_off();

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  c10::Device device_;
  c10::Stream stream_;
  std::atomic<bool> broken_ = false;
};

// Waits until the collective is done on the device. Call it inside Job::finish only.
void wait_for(World& world, const c10::intrusive_ptr<c10d::Work>& work);

}  // namespace thinwire::torch_engine
