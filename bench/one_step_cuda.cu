// one_step_cuda.cu: one step of a scheme on one GPU for a profiler to look at (kernel_table.py):
// encode, decode of RANKS workers' messages, conclude. The profiler's range has STEPS steps, after
// a warm-up in which momentum and threshold settle.
//
//     one_step_cuda SCHEME ELEMENTS [RANKS [STEPS]]     e.g. dgc:density=0.001 25557032 8 2
//     one_step_cuda copy BYTES      the median time of a copy that reads and writes BYTES in all
// SPDX-License-Identifier: Apache-2.0
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "thinwire/compress/registry.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/random.h"

namespace {

using namespace thinwire;

constexpr Device gpu{Device::Kind::cuda, 0};

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "one_step_cuda: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

// Heavy-tailed numbers, another set for each seed.
__global__ void fill_kernel(float* x, std::size_t count, std::uint64_t seed) {
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const float a = random_unit(seed, 2 * i) + 0x1p-25f, b = random_unit(seed, 2 * i + 1);
    const float normal = sqrtf(-2 * logf(a)) * cospif(2 * b);
    x[i] = normal * expf(normal) * 1e-3f;
  }
}

void copy(double bytes, cudaStream_t stream) {
  const auto half = static_cast<std::size_t>(bytes / 2);
  const Buffer from(Place::cuda, half, gpu), to(Place::cuda, half, gpu);
  cudaEvent_t begin{}, end{};
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  std::vector<float> times(31);
  for (float& time : times) {
    check(cudaEventRecord(begin, stream));
    check(cudaMemcpyAsync(to.data(), from.data(), half, cudaMemcpyDeviceToDevice, stream));
    check(cudaEventRecord(end, stream));
    check(cudaEventSynchronize(end));
    check(cudaEventElapsedTime(&time, begin, end));
  }
  std::sort(times.begin(), times.end());
  std::printf("%.6f ms\n", static_cast<double>(times[times.size() / 2]));
}

// All ranks send what this one has.
class OneStep {
 public:
  OneStep(const std::string& config, std::size_t count, int ranks, cudaStream_t stream)
      : compressor_(make_compressor(Config::parse(config), Bucket::single(0, "w", count),
                                    {0, ranks, true, true, gpu})),
        count_(count),
        ranks_(static_cast<std::size_t>(ranks)),
        average_(Place::cuda, count * sizeof(float), gpu),
        verdict_(Place::cuda, sizeof(Verdict), gpu),
        written_(Place::cuda, sizeof(std::uint64_t), gpu),
        stream_(stream) {
    for (int i = 0; i < 4; ++i) {  // several gradients in turn: none of it waits in the cache
      gradients_.emplace_back(Place::cuda, count * sizeof(float), gpu);
      fill_kernel<<<4096, 256, 0, stream>>>(gradients_.back().as<float>(), count,
                                            static_cast<std::uint64_t>(i));
    }
    for (int round = 0; round < compressor_->rounds(); ++round) {
      const Leg leg = compressor_->leg(0, round);
      const bool gathers = leg.reduction == Reduction::gather;
      out_.emplace_back(Place::cuda, leg.bytes, gpu);
      slots_.emplace_back(Place::cuda, gathers ? ranks_ * leg.bytes : 0, gpu);
    }
  }

  void run(std::size_t step) {
    const Buffer& gradient = gradients_[step % gradients_.size()];
    const TensorView view(gradient.data(), count_, DType::f32, gpu);
    const TensorView average(average_.data(), count_, DType::f32, gpu);
    Turn turn;
    turn.stream = {stream_};
    turn.verdict = verdict_.as<Verdict>();
    turn.written = written_.as<std::uint64_t>();
    for (std::size_t round = 0; round < out_.size(); ++round) {
      const Buffer &out = out_[round], &slots = slots_[round];
      turn.round = static_cast<int>(round);
      (void)compressor_->encode(turn, view, {out.data(), out.size()});
      for (std::size_t r = 0; r < ranks_ && slots.size() > 0; ++r)
        copy_bytes(slots.data() + r * out.size(), out.data(), out.size(), {stream_});
      const Buffer& from = slots.size() > 0 ? slots : out;
      (void)compressor_->decode(turn, {{from.data(), from.size()}, out.size(), {}},
                                last(round) ? average : view);
    }
    turn.round = 0;
    compressor_->conclude(turn, average, 0);
  }

 private:
  bool last(std::size_t round) const { return round + 1 == out_.size(); }

  std::unique_ptr<Compressor> compressor_;
  std::size_t count_, ranks_;
  Buffer average_, verdict_, written_;
  std::vector<Buffer> gradients_, out_, slots_;  // the latter two by round
  cudaStream_t stream_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3 || !has_cuda()) {
    std::fprintf(stderr, "%s\n",
                 argc < 3 ? "one_step_cuda SCHEME ELEMENTS [RANKS [STEPS]]"
                          : "one_step_cuda: this machine has no GPU");
    return 1;
  }
  cudaStream_t stream{};
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  if (std::string(argv[1]) == "copy") {
    copy(std::atof(argv[2]), stream);
    return 0;
  }
  constexpr std::size_t warm_up = 300;
  const auto count = static_cast<std::size_t>(std::atoll(argv[2]));
  OneStep one(argv[1], count, argc > 3 ? std::atoi(argv[3]) : 8, stream);
  const std::size_t steps = argc > 4 ? static_cast<std::size_t>(std::atoll(argv[4])) : 2;
  for (std::size_t step = 0; step < warm_up + steps; ++step) {
    if (step == warm_up) {
      check(cudaStreamSynchronize(stream));
      check(cudaProfilerStart());
    }
    one.run(step);
  }
  check(cudaStreamSynchronize(stream));
  check(cudaProfilerStop());
  return 0;
}
