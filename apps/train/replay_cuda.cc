// replay_cuda.cc: recordings are CUDA graphs.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "apps/train/replay.h"

namespace thinwire::train {
namespace {

class Graph final : public Replay {
 public:
  explicit Graph(const std::function<void()>& work) {
    c10::cuda::device_synchronize();
    const c10::cuda::CUDAStreamGuard guard(stream_);
    graph_.capture_begin();
    try {
      work();
    } catch (...) {
      try {
        graph_.capture_end();
      } catch (...) {  // says only that the capture failed
      }
      throw;
    }
    graph_.capture_end();
  }

  void start(const std::function<void()>& before) override {
    c10::Event now(c10::DeviceType::CUDA);
    now.record(c10::cuda::getCurrentCUDAStream());
    now.block(stream_);
    const c10::cuda::CUDAStreamGuard guard(stream_);
    before();
    graph_.replay();
    end_.record(stream_);
  }

  void join() override { end_.block(c10::cuda::getCurrentCUDAStream()); }

 private:
  const c10::cuda::CUDAStream stream_ = c10::cuda::getStreamFromPool();
  c10::Event end_{c10::DeviceType::CUDA};
  at::cuda::CUDAGraph graph_;
};

}  // namespace

std::unique_ptr<Replay> record(const std::function<void()>& work) {
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess || free < total / 2) return nullptr;
  return std::make_unique<Graph>(work);
}

}  // namespace thinwire::train
