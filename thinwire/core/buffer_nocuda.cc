// buffer_nocuda.cc: host memory only.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <new>

#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

constexpr std::align_val_t alignment{64};

[[noreturn]] void no_cuda() {
  fail("this build of thinwire has no CUDA; build it where nvcc is found (-DTHINWIRE_CUDA=ON)");
}

void require_cpu(Device device) {
  if (device.kind != Device::Kind::cpu) no_cuda();
}

}  // namespace

// Nothing copies to or from a device here, so pinned memory is plain memory.
Buffer::Buffer(Place place, std::size_t bytes, Device device)
    : bytes_(bytes), place_(place), device_(device) {
  if (place == Place::cuda) no_cuda();
  if (bytes == 0) return;
  data_ = ::operator new(bytes, alignment);
  std::memset(data_, 0, bytes);
}

void Buffer::release() { ::operator delete(data_, alignment); }

bool has_cuda() { return false; }

void copy_bytes(void*, const void*, std::size_t, Stream) { no_cuda(); }
void zero_bytes(void*, std::size_t, Stream) { no_cuda(); }
void synchronize(Stream) {}

DeviceScope::DeviceScope(Device device) { require_cpu(device); }
DeviceScope::~DeviceScope() = default;

OwnStream::OwnStream(Device device) : device_(device) { require_cpu(device); }
OwnStream::~OwnStream() = default;

void OwnStream::copy(void* to, const void* from, std::size_t bytes) const {
  if (bytes != 0) std::memmove(to, from, bytes);
}

void OwnStream::zero(void* to, std::size_t bytes) const {
  if (bytes != 0) std::memset(to, 0, bytes);
}

void OwnStream::wait() const {}

Event::Event(Device device) : device_(device) { require_cpu(device); }
Event::~Event() = default;
void Event::record(Stream) {}
void Event::hold_back(Stream) const {}
void Event::wait() const {}
bool Event::done() const { return true; }

}  // namespace thinwire
