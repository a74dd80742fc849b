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

// Breaks off whatever the backend waits for. Its own abort may fail, or wait in turn.
void end(const c10::intrusive_ptr<c10d::Backend>& backend);

// A tensor over bytes of the host, which must outlive it.
at::Tensor host_tensor(const std::byte* data, std::size_t bytes);

// Copies run in a stream of our own, so as not to wait for what the model computes. Memory that is
// not pinned is staged by the driver.
class DeviceBackend {
 public:
  DeviceBackend(c10::intrusive_ptr<c10d::Backend> backend, c10::Device device);
  ~DeviceBackend();
  DeviceBackend(const DeviceBackend&) = delete;
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  // Runs body(backend) in our stream. Whatever goes wrong there is the loss of this collective.
  template <typename Body>
  void use(const World& world, Body body) {
    try {
      const c10::StreamGuard guard(stream_);
      body(*backend_);
    } catch (const std::exception& error) {
      throw Lost{world.rank(), error.what()};
    }
  }

  // Bytes of the device.
  at::Tensor room(std::size_t bytes) const;

  // Ends what the device waits for, now: it would wait for ever, and so would ranks that wait for
  // us. Any thread may call it.
  void break_off();

 private:
  c10::intrusive_ptr<c10d::Backend> backend_;
  c10::Device device_;
  c10::Stream stream_;
  std::atomic<bool> broken_ = false;
};

// Until the collective is done on the device; inside Job::finish only.
void wait_for(World& world, const c10::intrusive_ptr<c10d::Work>& work);

}  // namespace thinwire::torch_engine
