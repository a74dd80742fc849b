// cuda_bench.cu: topk and dgc on one GPU, gradient in memory to frame in memory and back, beside
// the time that a copy needs for the same bytes. Times are medians of single steps by CUDA events,
// in a stream, after a warm-up; buffers are larger than the L2 cache.
// SPDX-License-Identifier: Apache-2.0
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
#include "thinwire/kernels/cast.h"

namespace {

using namespace thinwire;

constexpr Device gpu{Device::Kind::cuda, 0};
constexpr int steps = 40;

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "cuda_bench: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

// Heavy-tailed numbers, another set for each seed.
__global__ void fill(float* x, std::size_t count, std::uint64_t seed) {
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x) {
    const float a = random_unit(seed, 2 * i) + 0x1p-25f, b = random_unit(seed, 2 * i + 1);
    const float normal = sqrtf(-2 * logf(a)) * cospif(2 * b);
    x[i] = normal * expf(normal) * 1e-3f;
  }
}

class Timer {
 public:
  Timer() {
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
  }
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  template <typename Body>
  void run(cudaStream_t stream, const Body& body) {
    check(cudaEventRecord(begin_, stream));
    body();
    check(cudaEventRecord(end_, stream));
    check(cudaEventSynchronize(end_));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin_, end_));
    times_.push_back(ms);
  }
  double median() {
    std::sort(times_.begin(), times_.end());
    return times_[times_.size() / 2];
  }

 private:
  cudaEvent_t begin_{}, end_{};
  std::vector<float> times_;
};

// Milliseconds of a copy that moves this many bytes, read and written together.
double copy_time(double bytes, cudaStream_t stream) {
  const auto half = static_cast<std::size_t>(bytes / 2);
  const Buffer from(Place::cuda, half, gpu), to(Place::cuda, half, gpu);
  Timer timer;
  for (int i = 0; i < 20; ++i)
    timer.run(stream, [&] {
      check(cudaMemcpyAsync(to.data(), from.data(), half, cudaMemcpyDeviceToDevice, stream));
    });
  return timer.median();
}

struct Row {
  double encode = 0, decode = 0, graph = 0;
  std::uint64_t bytes = 0;
};

Row measure(const std::string& config, std::size_t count, int ranks, DType dtype,
            cudaStream_t stream) {
  const Stream on{stream};
  const Bucket bucket = Bucket::single(0, "w", count);
  const auto compressor =
      make_compressor(Config::parse(config), bucket, {0, ranks, true, true, gpu});
  // Several gradients in turn: none of it waits in the cache.
  const int sets = count > (std::size_t{1} << 28) ? 1 : 4;
  std::vector<Buffer> gradients;
  const Buffer wide(Place::cuda, dtype == DType::f32 ? 0 : count * sizeof(float), gpu);
  for (int i = 0; i < sets; ++i) {
    gradients.emplace_back(Place::cuda, count * size_of(dtype), gpu);
    float* const target = dtype == DType::f32 ? gradients[i].as<float>() : wide.as<float>();
    fill<<<4096, 256, 0, stream>>>(target, count, static_cast<std::uint64_t>(i));
    if (dtype != DType::f32)
      cast_cuda(DType::f32, target, dtype, gradients[i].data(), count, 1.0f, nullptr, on);
  }
  const Buffer verdict(Place::cuda, sizeof(Verdict), gpu), written(Place::cuda, 8, gpu);
  const Leg leg = compressor->leg(0, 0);
  const Buffer out(Place::cuda, leg.bytes, gpu);
  const Buffer slots(Place::cuda, leg.bytes * static_cast<std::size_t>(ranks), gpu);
  Turn turn;
  turn.stream = on;
  turn.verdict = verdict.as<Verdict>();
  turn.written = written.as<std::uint64_t>();
  const auto view = [&](int i) {
    return TensorView(gradients[static_cast<std::size_t>(i % sets)].data(), count, dtype, gpu);
  };
  const Bytes room{out.data(), out.size()};
  Timer encode, decode, graph;
  for (int i = 0; i < steps + 20; ++i) {
    if (i < 20) {
      (void)compressor->encode(turn, view(i), room);
    } else {
      encode.run(stream, [&] { (void)compressor->encode(turn, view(i), room); });
    }
  }
  Inbox inbox;
  inbox.data = {slots.data(), slots.size()};
  inbox.slot_bytes = leg.bytes;
  for (int r = 0; r < ranks; ++r)
    copy_bytes(slots.data() + static_cast<std::size_t>(r) * leg.bytes, out.data(), leg.bytes, on);
  const Buffer average(Place::cuda, count * size_of(dtype), gpu);
  const TensorView target(average.data(), count, dtype, gpu);
  for (int i = 0; i < steps; ++i)
    decode.run(stream, [&] { (void)compressor->decode(turn, inbox, target); });

  // The same step as a graph: what the launches cost.
  cudaGraph_t recorded{};
  cudaGraphExec_t ready{};
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  (void)compressor->encode(turn, view(0), room);
  check(cudaStreamEndCapture(stream, &recorded));
  check(cudaGraphInstantiate(&ready, recorded, 0));
  for (int i = 0; i < steps; ++i) graph.run(stream, [&] { check(cudaGraphLaunch(ready, stream)); });
  check(cudaGraphExecDestroy(ready));
  check(cudaGraphDestroy(recorded));
  Row row{encode.median(), decode.median(), graph.median(), 0};
  check(cudaMemcpy(&row.bytes, written.data(), 8, cudaMemcpyDeviceToHost));
  return row;
}

}  // namespace

int main(int argc, char** argv) {
  if (!has_cuda()) {
    std::fprintf(stderr, "cuda_bench: this machine has no GPU\n");
    return 1;
  }
  cudaStream_t stream{};
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  struct Size {
    const char* name;
    std::size_t count;
  };
  const Size sizes[] = {{"ResNet-50", 25'557'032},
                        {"AlexNet", 61'100'840},
                        {"VGG-16", 138'357'544},
                        {"1e9", 1'000'000'000}};
  struct Case {
    const char* config;
    double bytes;  // per element that encoding must move, without the gradient
    DType dtype;
  };
  const Case cases[] = {{"dgc", 16, DType::f32},
                        {"dgc", 16, DType::bf16},
                        {"topk", 8, DType::f32},
                        {"dgc:values=sign", 16, DType::f32},
                        {"dgc:density=0.01", 16, DType::f32}};
  const bool small = argc > 1 && std::string(argv[1]) == "small";
  std::printf("%-10s %-18s %-5s %9s %9s %9s %7s %11s %9s %10s\n", "model", "scheme", "grad",
              "encode ms", "graph ms", "copy ms", "share", "decode 8 ms", "fill ms", "bytes");
  for (const Size& size : sizes) {
    for (const Case& one : cases) {
      if (small && size.count > 200'000'000) continue;
      if (size.count > 200'000'000 && &one != &cases[0]) continue;
      const double gradient_bytes = static_cast<double>(size_of(one.dtype));
      const auto count = static_cast<double>(size.count);
      const double floor = copy_time(count * (one.bytes + gradient_bytes), stream);
      const double fill_floor = copy_time(count * gradient_bytes, stream);
      const Row row = measure(one.config, size.count, 8, one.dtype, stream);
      std::printf("%-10s %-18s %-5s %9.3f %9.3f %9.3f %6.0f%% %11.3f %9.3f %10llu\n", size.name,
                  one.config, name_of(one.dtype), row.encode, row.graph, floor,
                  100 * floor / row.encode, row.decode, fill_floor,
                  static_cast<unsigned long long>(row.bytes));
    }
  }
  return 0;
}
