// buffer_cuda.cc: memory, copies and events by the CUDA runtime.
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <new>

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

// Makes a device current for a scope.
class OnDevice {
 public:
  explicit OnDevice(Device device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    if (device.index != before_) check(cudaSetDevice(device.index), "cudaSetDevice");
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

}  // namespace

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
    const OnDevice here(device);
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

Event::Event(Device device) {
  const OnDevice here(device);
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  event_ = event;
}

Event::~Event() { cudaEventDestroy(of(event_)); }

void Event::record(Stream stream) {
  check(cudaEventRecord(of(event_), of(stream)), "cudaEventRecord");
}

void Event::hold_back(Stream stream) const {
  check(cudaStreamWaitEvent(of(stream), of(event_), 0), "cudaStreamWaitEvent");
}

void Event::wait() const { check(cudaEventSynchronize(of(event_)), "cudaEventSynchronize"); }

bool Event::done() const {
  const cudaError_t state = cudaEventQuery(of(event_));
  if (state == cudaErrorNotReady) return false;
  check(state, "cudaEventQuery");
  return true;
}

}  // namespace thinwire
