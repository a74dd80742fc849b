// sums_cuda_bench.cu: whole steps of the schemes that send sums in several parts (powersgd, csc,
// randomk) on one GPU, without the network: one rank, whose payload is the sum. Every stage by
// CUDA events, the step as a CUDA graph, and beside it a copy of the bytes that a step must move.
// Times are medians of single steps; models are one bucket, larger than the L2 cache.
//
//     sums_cuda_bench [small]        small: without the transformer
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

namespace {

using namespace thinwire;
using namespace bench;

constexpr Device gpu{Device::Kind::cuda, 0};
constexpr int steps = 30, warm_up = 5;

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "sums_cuda_bench: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

__global__ void fill(float* x, std::size_t count, std::uint64_t seed) {
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += std::size_t{gridDim.x} * blockDim.x)
    x[i] = 1e-3f * (random_unit(seed, i) - 0.5f);
}

// Medians of the times between marks in a stream.
class Marks {
 public:
  explicit Marks(cudaStream_t stream) : stream_(stream) {}
  ~Marks() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  void mark() {
    if (next_ == events_.size()) check(cudaEventCreate(&events_.emplace_back()));
    check(cudaEventRecord(events_[next_++], stream_));
  }
  void end() {
    check(cudaEventSynchronize(events_[next_ - 1]));
    times_.resize(next_);
    for (std::size_t i = 1; i < next_; ++i) add(i, events_[i - 1], events_[i]);
    add(0, events_[0], events_[next_ - 1]);  // all of it
    next_ = 0;
  }
  double median(std::size_t i) {
    if (i >= times_.size()) return 0;
    std::sort(times_[i].begin(), times_[i].end());
    return times_[i][times_[i].size() / 2];
  }

 private:
  void add(std::size_t i, cudaEvent_t from, cudaEvent_t to) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, from, to));
    times_[i].push_back(ms);
  }

  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
  std::size_t next_ = 0;
  std::vector<std::vector<float>> times_;
};

double copy_time(double bytes, cudaStream_t stream) {
  const auto half = static_cast<std::size_t>(bytes / 2);
  const Buffer from(Place::cuda, half, gpu), to(Place::cuda, half, gpu);
  Marks marks(stream);
  for (int i = 0; i < 20; ++i) {
    marks.mark();
    check(cudaMemcpyAsync(to.data(), from.data(), half, cudaMemcpyDeviceToDevice, stream));
    marks.mark();
    marks.end();
  }
  return marks.median(0);
}

void measure(const char* model, const Bucket& bucket, const std::string& config, double bytes,
             cudaStream_t stream) {
  const std::size_t count = bucket.elements();
  const auto compressor = make_compressor(Config::parse(config), bucket, {0, 1, true, true, gpu});
  const Buffer gradient(Place::cuda, count * sizeof(float), gpu);
  const Buffer fresh(Place::cuda, count * sizeof(float), gpu);
  fill<<<4096, 256, 0, stream>>>(fresh.as<float>(), count, 1);
  const Buffer verdict(Place::cuda, sizeof(Verdict), gpu);
  std::vector<Buffer> payloads;
  std::size_t sent = 0;
  for (int round = 0; round < compressor->rounds(); ++round) {
    payloads.emplace_back(Place::cuda, compressor->leg(0, round).bytes, gpu);
    sent += payloads.back().size();
  }
  const TensorView view(gradient.data(), count, DType::f32, gpu);
  Turn turn;
  turn.stream = {stream};
  turn.verdict = verdict.as<Verdict>();
  const auto step = [&](Marks* marks) {
    turn.round = 0;
    for (const Buffer& payload : payloads) {
      Inbox inbox;
      inbox.data = {payload.data(), payload.size()};
      (void)compressor->encode(turn, view, {payload.data(), payload.size()});
      if (marks) marks->mark();
      (void)compressor->decode(turn, inbox, view);
      if (marks) marks->mark();
      ++turn.round;
    }
    compressor->conclude(turn, view, 0);
    if (marks) marks->mark();
  };
  Marks marks(stream), graph_marks(stream);
  const auto renew = [&] {
    check(cudaMemcpyAsync(gradient.data(), fresh.data(), gradient.size(), cudaMemcpyDeviceToDevice,
                          stream));
  };
  for (int i = 0; i < steps + warm_up; ++i) {
    renew();
    if (i < warm_up) {
      step(nullptr);
    } else {
      marks.mark();
      step(&marks);
      marks.end();
    }
  }
  cudaGraph_t graph{};
  cudaGraphExec_t ready{};
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  step(nullptr);
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&ready, graph, 0));
  for (int i = 0; i < steps; ++i) {
    renew();
    graph_marks.mark();
    check(cudaGraphLaunch(ready, stream));
    graph_marks.mark();
    graph_marks.end();
  }
  check(cudaGraphExecDestroy(ready));
  check(cudaGraphDestroy(graph));
  const double floor = copy_time(static_cast<double>(count) * bytes, stream);
  std::printf("%-12s %-30s", model, config.c_str());
  for (std::size_t i = 1; i <= 5; ++i) std::printf(" %8.3f", marks.median(i));
  std::printf(" %8.3f %8.3f %8.3f %5.0f%% %12zu\n", marks.median(0), graph_marks.median(0), floor,
              100 * floor / graph_marks.median(0), sent);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (!has_cuda()) {
    std::fprintf(stderr, "sums_cuda_bench: this machine has no GPU\n");
    return 1;
  }
  cudaStream_t stream{};
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  struct Model {
    const char* name;
    Shapes shapes;
  };
  std::vector<Model> models = {{"ResNet-50", resnet50()}, {"VGG-16", vgg16()}};
  if (argc < 2 || std::string(argv[1]) != "small") models.push_back({"GPT 1.3 B", transformer()});
  // The bytes per element that a step must move. powersgd: reads gradient and error, writes the
  // error, reads it again, writes the average. csc: gradient, momentum and residual in, the latter
  // two out; the average. randomk: gradient in, average out.
  struct Case {
    const char* config;
    double bytes;
  };
  const Case cases[] = {{"powersgd:rank=1", 20},
                        {"powersgd:rank=2", 20},
                        {"powersgd:rank=4", 20},
                        {"powersgd:rank=32", 20},
                        {"csc", 24},
                        {"csc:select=previous,values=f16", 24},
                        {"randomk", 9},
                        {"randomk:memory=momentum", 25}};
  std::printf("times in ms; with one round the third column is conclude\n");
  std::printf("%-12s %-30s %8s %8s %8s %8s %8s %8s %8s %8s %6s %12s\n", "model", "scheme",
              "encode 0", "decode 0", "encode 1", "decode 1", "conclude", "step", "graph", "copy",
              "share", "bytes sent");
  for (const Model& model : models) {
    const Bucket bucket = bucket_with(model.shapes);
    for (const Case& one : cases) measure(model.name, bucket, one.config, one.bytes, stream);
  }
  return 0;
}
