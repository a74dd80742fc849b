// buffer_cuda.cc: memory, copies and events by the CUDA runtime.
// SPDX-License-Identifier: Apache-2.0
#include <cuda.h>
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

// A function of the driver, which is not linked: a machine without a GPU has none.
template <typename Function>
Function* driver(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
#else
  cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  return result == cudaDriverEntryPointSuccess ? reinterpret_cast<Function*>(found) : nullptr;
}

// The primary context of a device, which the runtime and torch use, too; null if there is none.
CUcontext context_of(int device) {
  static auto* const retain = driver<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain");
  static auto* const get = driver<CUresult(CUdevice*, int)>("cuDeviceGet");
  static std::mutex mutex;
  static auto* const known = new std::map<int, CUcontext>;  // outlives every user
  const std::lock_guard lock(mutex);
  CUcontext& context = (*known)[device];
  CUdevice handle{};
  if (context == nullptr && retain != nullptr && get != nullptr &&
      get(&handle, device) == CUDA_SUCCESS && retain(&context, handle) != CUDA_SUCCESS)
    context = nullptr;
  return context;
}

// The context that is current is put aside. cudaSetDevice() could not restore it: since CUDA 12 it
// makes a context on the device that it goes back to, so every rank would have memory on the first.
bool enter(Device device) {
  static auto* const push = driver<CUresult(CUcontext)>("cuCtxPushCurrent");
  const CUcontext context = context_of(device.index);
  return context != nullptr && push != nullptr && push(context) == CUDA_SUCCESS;
}

void leave() {
  static auto* const pop = driver<CUresult(CUcontext*)>("cuCtxPopCurrent");
  CUcontext left{};
  pop(&left);
}

// Frees what belongs to a device, unless the driver is gone because the process ends.
template <typename Free>
void free_on(Device device, const Free& free) {
  if (!enter(device)) return;
  free();
  leave();
}

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
  int devices = 0;
  if (!enter(device)) {
    check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    fail("cuda:", device.index, ": this device cannot be used; there are ", devices);
  }
  entered_ = true;
}

DeviceScope::~DeviceScope() {
  if (entered_) leave();
}

Buffer::Buffer(Place place, std::size_t bytes, Device device)
    : bytes_(bytes), place_(place), device_(device) {
  if (bytes == 0) return;
  if (place == Place::host) {
    data_ = ::operator new(bytes, alignment);
    __builtin_memset(data_, 0, bytes);
  } else if (place == Place::pinned) {
    const DeviceScope here(device);
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
  if (place_ == Place::pinned) free_on(device_, [this] { cudaFreeHost(data_); });
  if (place_ == Place::cuda) free_on(device_, [this] { cudaFree(data_); });
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
  if (event_ != nullptr) free_on(device_, [this] { cudaEventDestroy(of(event_)); });
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
