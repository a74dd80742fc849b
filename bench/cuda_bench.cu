// cuda_bench.cu: the schemes on one GPU, gradient in memory to frame in memory and back, beside the
// time that a copy needs for the same bytes. Times are medians of single steps by CUDA events, in a
// stream, after a warm-up; buffers are larger than the L2 cache.
//
//     cuda_bench                 both tables
//     cuda_bench small           without 1e9 elements
//     cuda_bench elementwise [NAME]   only the schemes that code every element [and begin so]
//     cuda_bench profile [NAME]       one step of each of those at 1e8, for a profiler
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/shapes.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/random.h"
#include "thinwire/kernels/cast.h"

namespace {

using namespace thinwire;
using namespace bench;

constexpr Device gpu{Device::Kind::cuda, 0};
constexpr int steps = 40;
// Until momentum and threshold have settled.
constexpr int warm_up = 300;

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
  for (int i = 0; i < steps + warm_up; ++i) {
    if (i < warm_up) {
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

// A scheme that codes every element, and the bytes per element that its encoder moves besides the
// gradient and its payload.
struct Elementwise {
  const char* config;
  double memory;     // residual and momentum, read and written
  double reads = 1;  // of the gradient
};

constexpr Elementwise elementwise[] = {
    {"onebit", 16},
    {"onebit:memory=residual", 8},
    {"efsign", 16},
    {"efsign:memory=residual", 8},
    {"efsign:group=0,memory=residual", 12, 2},  // a second pass reads both again
    {"signum", 8},
    {"signum:travel=sum", 8},
    {"int8", 8},
    {"int8:memory=none", 0},
    {"int8:rounding=random,memory=none", 0},
    {"qsgd", 0},
    {"qsgd:bits=3,memory=residual", 8},
    {"natural", 0},
    {"natural:memory=residual", 8},
    {"terngrad", 0, 2},
    {"terngrad:travel=sum", 0, 2},
    {"threshold", 8},
    {"threshold:memory=momentum", 16},
};

// One bucket on its way through all rounds.
class Lane {
 public:
  Lane(const std::string& config, const Bucket& bucket, int ranks, cudaStream_t stream)
      : compressor_(make_compressor(Config::parse(config), bucket, {0, ranks, true, true, gpu})),
        count_(bucket.elements()),
        ranks_(static_cast<std::size_t>(ranks)),
        gradient_(Place::cuda, count_ * sizeof(float), gpu),
        average_(Place::cuda, count_ * sizeof(float), gpu),
        state_(Place::cuda, sizeof(Verdict) + sizeof(std::uint64_t), gpu),
        stream_(stream) {
    fill<<<4096, 256, 0, stream>>>(gradient_.as<float>(), count_, bucket.id);
    for (int round = 0; round < compressor_->rounds(); ++round) {
      const Leg leg = compressor_->leg(0, round);
      const bool gathers = leg.reduction == Reduction::gather;
      out_.emplace_back(Place::cuda, leg.bytes, gpu);
      slots_.emplace_back(Place::cuda, gathers ? ranks_ * leg.bytes : 0, gpu);
    }
  }

  // Up to the last message.
  void encode() {
    const int rounds = compressor_->rounds();
    for (int round = 0; round < rounds; ++round) {
      const Buffer& out = out_[static_cast<std::size_t>(round)];
      (void)compressor_->encode(turn(round), view(gradient_), {out.data(), out.size()});
      if (round + 1 < rounds)
        (void)compressor_->decode(turn(round), {{out.data(), out.size()}, 0, {}}, view(gradient_));
    }
  }

  // All ranks have sent what this one has.
  void gather() const {
    const Buffer &out = out_.back(), &slots = slots_.back();
    for (std::size_t r = 0; r < ranks_ && slots.size() > 0; ++r)
      copy_bytes(slots.data() + r * out.size(), out.data(), out.size(), {stream_});
  }

  void decode() {
    const Buffer &out = out_.back(), &slots = slots_.back();
    const Buffer& from = slots.size() > 0 ? slots : out;
    (void)compressor_->decode(turn(compressor_->rounds() - 1),
                              {{from.data(), from.size()}, out.size(), {}}, view(average_));
  }

  // What a rank has sent, and what it reads of all ranks.
  double sent() const {
    std::uint64_t written = out_.back().size();
    if (slots_.back().size() > 0)
      check(cudaMemcpy(&written, state_.as<Verdict>() + 1, sizeof written, cudaMemcpyDefault));
    return static_cast<double>(written);
  }
  double received() const {
    return sent() * static_cast<double>(slots_.back().size() > 0 ? ranks_ : 1);
  }
  double count() const { return static_cast<double>(count_); }

 private:
  TensorView view(const Buffer& buffer) const { return {buffer.data(), count_, DType::f32, gpu}; }
  Turn turn(int round) const {
    Turn turn;
    turn.round = round;
    turn.stream = {stream_};
    turn.verdict = state_.as<Verdict>();
    turn.written = reinterpret_cast<std::uint64_t*>(state_.as<Verdict>() + 1);
    return turn;
  }

  std::unique_ptr<Compressor> compressor_;
  std::size_t count_, ranks_;
  Buffer gradient_, average_, state_;
  std::vector<Buffer> out_, slots_;  // by round
  cudaStream_t stream_;
};

void measure_elementwise(const std::string& name, const char* model,
                         const std::vector<Bucket>& buckets, cudaStream_t stream) {
  for (const Elementwise& one : elementwise) {
    if (!std::string(one.config).starts_with(name)) continue;
    std::vector<Lane> lanes;
    for (const Bucket& bucket : buckets) lanes.emplace_back(one.config, bucket, 8, stream);
    Timer encode, decode;
    for (int i = 0; i < 5 + steps; ++i) {
      const auto body = [&] {
        for (Lane& lane : lanes) lane.encode();
      };
      if (i < 5) {
        body();
      } else {
        encode.run(stream, body);
      }
    }
    double encoded = 0, decoded = 0, count = 0;
    for (const Lane& lane : lanes) {
      lane.gather();
      encoded += lane.count() * (one.memory + 4 * one.reads) + lane.sent();
      decoded += lane.count() * 4 + lane.received();
      count += lane.count();
    }
    for (int i = 0; i < steps; ++i)
      decode.run(stream, [&] {
        for (Lane& lane : lanes) lane.decode();
      });
    const double encode_floor = copy_time(encoded, stream);
    const double decode_floor = copy_time(decoded, stream);
    const double encode_ms = encode.median(), decode_ms = decode.median();
    std::printf("%-10s %-32s %9.3f %7.2f %6.0f%% %5.2f x %11.3f %7.2f %6.0f%% %5.2f x\n", model,
                one.config, encode_ms, encoded / count, 100 * encode_floor / encode_ms,
                encode_ms / encode_floor, decode_ms, decoded / count,
                100 * decode_floor / decode_ms, decode_ms / decode_floor);
  }
}

// One step of each, without times.
void profile_elementwise(const std::string& name, cudaStream_t stream) {
  for (const Elementwise& one : elementwise) {
    if (!std::string(one.config).starts_with(name)) continue;
    Lane lane(one.config, Bucket::single(0, "w", 100'000'000), 8, stream);
    lane.encode();
    lane.gather();
    lane.decode();
    check(cudaStreamSynchronize(stream));
  }
}

// Every element is coded: encode, and decode of 8 workers.
void print_elementwise(const std::string& name, cudaStream_t stream) {
  std::printf("%-10s %-32s %9s %7s %7s %7s %11s %7s %7s %7s\n", "model", "scheme", "encode ms",
              "bytes", "share", "floors", "decode 8 ms", "bytes", "share", "floors");
  measure_elementwise(name, "ResNet-50", buckets_with(resnet50()), stream);
  measure_elementwise(name, "1e8", {Bucket::single(0, "w", 100'000'000)}, stream);
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
  const std::string mode = argc > 1 ? argv[1] : "", name = argc > 2 ? argv[2] : "";
  if (mode == "profile") {
    profile_elementwise(name, stream);
    return 0;
  }
  if (mode != "small") print_elementwise(name, stream);
  if (mode == "elementwise") return 0;
  const bool small = mode == "small";
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
