// device_backend.cc: device memory, and how a backend ends, normally or after a failure.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/c10d/device_backend.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>
#include <utility>

#include "thinwire/comm/c10d/within.h"

namespace thinwire::torch_engine {
namespace {

c10::Stream own_stream(c10::Device device) {
  const c10::impl::VirtualGuardImpl devices(device.type());
  return device.is_cpu() ? devices.getStream(device) : devices.getStreamFromGlobalPool(device);
}

}  // namespace

void end(const c10::intrusive_ptr<c10d::Backend>& backend) {
  within(std::chrono::seconds(5), [backend] {
    backend->abort();
    return true;
  });
}

at::Tensor host_tensor(const std::byte* data, std::size_t bytes) {
  return at::from_blob(const_cast<std::byte*>(data), {static_cast<std::int64_t>(bytes)}, at::kByte);
}

DeviceBackend::DeviceBackend(c10::intrusive_ptr<c10d::Backend> backend, c10::Device device)
    : backend_(std::move(backend)), device_(device), stream_(own_stream(device)) {}

DeviceBackend::~DeviceBackend() {
  if (broken_) return;
  try {
    backend_->shutdown();
  } catch (const std::exception&) {  // nothing is in flight any more, so nothing is lost
  }
}

at::Tensor DeviceBackend::room(std::size_t bytes) const {
  return at::empty({static_cast<std::int64_t>(bytes)},
                   at::TensorOptions().dtype(at::kByte).device(device_));
}

void DeviceBackend::break_off() {
  if (!broken_.exchange(true)) end(backend_);
}

void wait_for(World& world, const c10::intrusive_ptr<c10d::Work>& work) {
  world.look([&] { return work->isCompleted(); });
  if (const std::exception_ptr error = work->exception()) std::rethrow_exception(error);
}

}  // namespace thinwire::torch_engine
