// buffer.h: memory that knows where it lies, and the order of work on a device. Without CUDA only
// host memory exists, and every function that needs a device throws.
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

// Whether this build has CUDA and the machine has a device for it.
bool has_cuda();

// Enqueues a copy between any two places. The host side must be pinned if the host is to go on.
void copy_bytes(void* to, const void* from, std::size_t bytes, Stream stream);
// Enqueues a fill with zeros of device memory.
void zero_bytes(void* to, std::size_t bytes, Stream stream);
// Waits until the stream is idle.
void synchronize(Stream stream);

// A point in a stream that another stream, or the host, waits for.
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
  void* event_ = nullptr;
};

}  // namespace thinwire
