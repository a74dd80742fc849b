// buffer_cuda.cc: memory, copies and events by the CUDA runtime.
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <new>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

constexpr std::align_val_t alignment{64};

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail("cuda: ", what, ": ", cudaGetErrorString(error));
}

cudaStream_t of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }
cudaEvent_t of(void* event) { return static_cast<cudaEvent_t>(event); }

bool on_cpu(Device device) { return device.kind == Device::Kind::cpu; }

// Streams that nobody uses now. They are never destroyed: an allocator that has lent memory to a
// stream asks it, when the memory comes back, whether its work has ended.
class StreamPool {
 public:
  cudaStream_t take(int device) {
    const std::lock_guard lock(mutex_);
    std::vector<cudaStream_t>& idle = idle_[device];
    if (idle.empty()) return nullptr;
    const cudaStream_t stream = idle.back();
    idle.pop_back();
    return stream;
  }
  void give_back(int device, cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    idle_[device].push_back(stream);
  }

 private:
  std::mutex mutex_;
  std::map<int, std::vector<cudaStream_t>> idle_;
};

StreamPool& idle_streams() {
  static auto* const streams = new StreamPool;  // outlives every user
  return *streams;
}

}  // namespace

DeviceScope::DeviceScope(Device device) {
  if (on_cpu(device)) return;
  int now = 0;
  check(cudaGetDevice(&now), "cudaGetDevice");
  if (now == device.index) return;
  check(cudaSetDevice(device.index), "cudaSetDevice");
  before_ = now;
}

DeviceScope::~DeviceScope() {
  if (before_ >= 0) cudaSetDevice(before_);
}

Buffer::Buffer(Place place, std::size_t bytes, Device device)
    : bytes_(bytes), place_(place), device_(device) {
  if (bytes == 0) return;
  if (place == Place::host) {
    data_ = ::operator new(bytes, alignment);
    __builtin_memset(data_, 0, bytes);
  } else if (place == Place::pinned) {
    check(cudaMallocHost(&data_, bytes), "no pinned memory");
    __builtin_memset(data_, 0, bytes);
  } else {
    const DeviceScope here(device);
    if (cudaMalloc(&data_, bytes) != cudaSuccess)
      fail("cuda:", device.index, ": no memory for ", bytes, " bytes; use a scheme with less state",
           " or smaller batches");
    // The fill must be done when another stream uses the memory.
    check(cudaMemset(data_, 0, bytes), "cudaMemset");
    check(cudaStreamSynchronize(nullptr), "cudaMemset");
  }
}

void Buffer::release() {
  if (data_ == nullptr) return;
  if (place_ == Place::host) ::operator delete(data_, alignment);
  if (place_ == Place::pinned) cudaFreeHost(data_);
  if (place_ == Place::cuda) cudaFree(data_);
  data_ = nullptr;
}

bool has_cuda() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

void copy_bytes(void* to, const void* from, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, of(stream)), "cudaMemcpyAsync");
}

void zero_bytes(void* to, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(to, 0, bytes, of(stream)), "cudaMemsetAsync");
}

void synchronize(Stream stream) {
  check(cudaStreamSynchronize(of(stream)), "cudaStreamSynchronize");
}

OwnStream::OwnStream(Device device) : device_(device) {
  if (on_cpu(device)) return;
  const DeviceScope here(device);
  handle_ = idle_streams().take(device.index);
  if (handle_ != nullptr) return;
  int least = 0, greatest = 0;  // CUDA counts down
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), "cudaStreamCreate");
  handle_ = stream;
}

// What was enqueued still runs.
OwnStream::~OwnStream() {
  if (handle_ != nullptr) idle_streams().give_back(device_.index, of(get()));
}

void OwnStream::copy(void* to, const void* from, std::size_t bytes) const {
  if (!on_cpu(device_)) return copy_bytes(to, from, bytes, get());
  if (bytes != 0) __builtin_memmove(to, from, bytes);
}

void OwnStream::zero(void* to, std::size_t bytes) const {
  if (!on_cpu(device_)) return zero_bytes(to, bytes, get());
  if (bytes != 0) __builtin_memset(to, 0, bytes);
}

void OwnStream::wait() const {
  if (!on_cpu(device_)) synchronize(get());
}

Event::Event(Device device) : device_(device) {
  if (on_cpu(device)) return;
  const DeviceScope here(device);
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  event_ = event;
}

Event::~Event() {
  if (event_ != nullptr) cudaEventDestroy(of(event_));
}

void Event::record(Stream stream) {
  if (!on_cpu(device_)) check(cudaEventRecord(of(event_), of(stream)), "cudaEventRecord");
}

void Event::hold_back(Stream stream) const {
  if (!on_cpu(device_))
    check(cudaStreamWaitEvent(of(stream), of(event_), 0), "cudaStreamWaitEvent");
}

void Event::wait() const {
  if (!on_cpu(device_)) check(cudaEventSynchronize(of(event_)), "cudaEventSynchronize");
}

bool Event::done() const {
  if (on_cpu(device_)) return true;
  const cudaError_t state = cudaEventQuery(of(event_));
  if (state == cudaErrorNotReady) return false;
  check(state, "cudaEventQuery");
  return true;
}

}  // namespace thinwire
