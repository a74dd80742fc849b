// buffer.h: memory that knows where it lies, and the order of work on a device. Without CUDA only
// host memory exists, and whatever needs a device throws.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "thinwire/core/device.h"

namespace thinwire {

enum class Place : std::uint8_t {
  host,
  pinned,  // host memory that a device can copy to and from while the host goes on
  cuda,    // memory of a CUDA device
};

// Owns memory. It is filled with zeros, and aligned to 64 bytes at least.
class Buffer {
 public:
  Buffer() = default;
  // Pinned memory is for one device, too.
  Buffer(Place place, std::size_t bytes, Device device = {});
  ~Buffer() { release(); }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(place_, other.place_);
    std::swap(device_, other.device_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t size() const { return bytes_; }  // in bytes
  Place place() const { return place_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void release();

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Place place_ = Place::host;
  Device device_;
};

// The places of work for a device: where its memory is, and where the host meets it.
inline Place place_on(Device device) {
  return device.kind == Device::Kind::cpu ? Place::host : Place::cuda;
}
inline Place place_beside(Device device) {
  return device.kind == Device::Kind::cpu ? Place::host : Place::pinned;
}

// Whether this build has CUDA and the machine has a device for it.
bool has_cuda();

// Enqueues a copy between any two places. The host side must be pinned if the host is to go on.
void copy_bytes(void* to, const void* from, std::size_t bytes, Stream stream);
// Enqueues a fill with zeros of device memory.
void zero_bytes(void* to, std::size_t bytes, Stream stream);
// Waits until the stream is idle.
void synchronize(Stream stream);

// Makes a device current for a scope; what is enqueued on one of its streams needs that. It touches
// no other device: a thread that has used none comes back to none. Nothing to do for the CPU.
class DeviceScope {
 public:
  explicit DeviceScope(Device device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  bool entered_ = false;
};

// A stream of our own. It runs beside all others, the default stream too, and before what they have
// not started yet. On the CPU it is null, and every call is complete when it returns: code that
// orders work by streams and events then runs without a device.
class OwnStream {
 public:
  explicit OwnStream(Device device);
  ~OwnStream();  // does not wait
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

  Device device() const { return device_; }
  Stream get() const { return {handle_}; }

  // As the functions above, in this stream.
  void copy(void* to, const void* from, std::size_t bytes) const;
  void zero(void* to, std::size_t bytes) const;
  void wait() const;

 private:
  Device device_;
  void* handle_ = nullptr;
};

// A point in a stream that another stream, or the host, waits for. On the CPU there is nothing to
// wait for.
class Event {
 public:
  explicit Event(Device device);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(Stream stream);
  void hold_back(Stream stream) const;  // later work of `stream` runs after the recorded point
  void wait() const;                    // the host waits
  bool done() const;

 private:
  Device device_;
  void* event_ = nullptr;
};

}  // namespace thinwire
