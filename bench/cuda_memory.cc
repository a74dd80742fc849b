// cuda_memory.cc: the memory that every scheme takes on a GPU, in bytes per parameter, as the
// device counts it (cudaMemGetInfo), with 8 workers:
//
//     state    what a checkpoint holds: momentum, residual, thresholds
//     work     what else a compressor keeps from step to step
//     frame    what a rank sends, of all rounds
//     inbox    what it receives: of a gather 8 frames; a sum arrives where the frame was
//
// Gradients and averages are not counted; they are DDP's. A step runs before the device is asked.
// Each allocation is rounded up to 2 MB, which shows where buckets are small.
//
//     cuda_memory [SCHEME...]
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/shapes.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/state.h"

namespace {

using namespace thinwire;

constexpr Device gpu{Device::Kind::cuda, 0};
constexpr std::size_t ranks = 8;

std::size_t used() {
  std::size_t free = 0, all = 0;
  if (cudaDeviceSynchronize() != cudaSuccess || cudaMemGetInfo(&free, &all) != cudaSuccess) {
    std::fprintf(stderr, "cuda_memory: %s\n", cudaGetErrorString(cudaGetLastError()));
    std::exit(1);
  }
  return all - free;
}

struct Taken {
  double state = 0, work = 0, frame = 0, inbox = 0;
};

// Counts what a checkpoint holds.
class StateSize final : public StateVisitor {
 public:
  void tensor(const std::string&, std::span<float> values, Share) override {
    bytes += values.size_bytes();
  }
  void number(const std::string&, double&, Share) override { bytes += sizeof(double); }

  std::size_t bytes = 0;
};

// A compressor and the messages of a step.
struct Lane {
  std::unique_ptr<Compressor> compressor;
  std::vector<Buffer> out, slots;  // by round
};

// One step, alone among 8 ranks that all send the same.
void take_step(Lane& lane, TensorView gradient, const Buffer& notes) {
  Turn turn;
  turn.verdict = notes.as<Verdict>();
  turn.written = reinterpret_cast<std::uint64_t*>(turn.verdict + 1);
  turn.norm = reinterpret_cast<double*>(turn.written + 1);
  for (turn.round = 0; turn.round < lane.compressor->rounds(); ++turn.round) {
    const Leg leg = lane.compressor->leg(0, turn.round);
    const std::size_t round = static_cast<std::size_t>(turn.round);
    if (lane.out.size() == round) {
      const bool gathers = leg.reduction == Reduction::gather;
      lane.out.emplace_back(Place::cuda, leg.in_place ? 0 : leg.bytes, gpu);
      lane.slots.emplace_back(Place::cuda, gathers ? ranks * leg.bytes : 0, gpu);
    }
    const Buffer &out = lane.out[round], &slots = lane.slots[round];
    const Bytes sent = leg.in_place ? Bytes{static_cast<std::byte*>(gradient.data), leg.bytes}
                                    : Bytes{out.data(), out.size()};
    (void)lane.compressor->encode(turn, gradient, sent);
    for (std::size_t r = 0; r < ranks && slots.size() > 0; ++r)
      copy_bytes(slots.data() + r * leg.bytes, sent.data(), leg.bytes, {});
    Inbox inbox;
    inbox.data = slots.size() > 0 ? ConstBytes{slots.data(), slots.size()} : ConstBytes(sent);
    inbox.slot_bytes = slots.size() > 0 ? leg.bytes : 0;
    (void)lane.compressor->decode(turn, inbox, gradient);
  }
  turn.round = 0;
  lane.compressor->conclude(turn, gradient, 0);
}

Taken measure(const Config& config, const std::vector<Bucket>& buckets) {
  std::vector<Buffer> gradients;
  for (const Bucket& bucket : buckets)
    gradients.emplace_back(Place::cuda, bucket.elements() * sizeof(float), gpu);
  const Buffer notes(Place::cuda, 256, gpu);
  const std::size_t before = used();
  std::vector<Lane> lanes(buckets.size());
  Taken result;
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    lanes[b].compressor = make_compressor(config, buckets[b], {0, ranks, true, true, gpu});
    take_step(lanes[b], {gradients[b].data(), buckets[b].elements(), DType::f32, gpu}, notes);
  }
  const std::size_t after = used();
  for (Lane& lane : lanes) {
    for (const Buffer& buffer : lane.out) result.frame += static_cast<double>(buffer.size());
    for (const Buffer& buffer : lane.slots) result.inbox += static_cast<double>(buffer.size());
  }
  // The messages may go before the compressors do; what is left is theirs.
  for (Lane& lane : lanes) {
    lane.out.clear();
    lane.slots.clear();
  }
  const double messages = static_cast<double>(after) - static_cast<double>(used());
  StateSize state;
  for (Lane& lane : lanes) lane.compressor->visit_state(state);
  result.state = static_cast<double>(state.bytes);
  result.work = static_cast<double>(after - before) - messages - result.state;
  return result;
}

std::vector<std::string> configs() {
  std::vector<std::string> all;
  for (const Scheme* scheme : schemes())
    if (scheme->cuda) all.push_back(scheme->name);
  for (const char* more :
       {"dgc:density=0.01", "dgc:warmup=1000", "csc:select=previous", "onebit:memory=residual",
        "efsign:memory=residual", "threshold:memory=momentum", "terngrad:travel=sum",
        "signum:travel=sum", "int8:memory=none", "qsgd:bits=3,memory=residual",
        "natural:memory=residual", "randomk:memory=momentum", "powersgd:rank=1", "powersgd:rank=4"})
    all.push_back(more);
  return all;
}

void print(const char* model, const std::vector<Bucket>& buckets,
           const std::vector<std::string>& texts) {
  double count = 0;
  for (const Bucket& bucket : buckets) count += static_cast<double>(bucket.elements());
  std::printf("\n%s, %zu buckets, %.0f parameters; bytes per parameter\n", model, buckets.size(),
              count);
  std::printf("%-28s %8s %8s %8s %8s %8s\n", "scheme", "state", "work", "frame", "inbox", "all");
  for (const std::string& text : texts) {
    const Config config = Config::parse(text);
    (void)measure(config, {Bucket::single(0, "w", 5000)});  // loads its kernels
    const Taken bytes = measure(config, buckets);
    std::printf("%-28s %8.2f %8.2f %8.2f %8.2f %8.2f\n", text.c_str(), bytes.state / count,
                bytes.work / count, bytes.frame / count, bytes.inbox / count,
                (bytes.state + bytes.work + bytes.frame + bytes.inbox) / count);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (!has_cuda()) {
    std::fprintf(stderr, "cuda_memory: this machine has no GPU\n");
    return 1;
  }
  std::vector<std::string> texts(argv + 1, argv + argc);
  if (texts.empty()) texts = configs();
  const Bucket matrix{0, {{"w", 0, 100'000'000, {10'000, 10'000}}}};
  print("1e8", {matrix}, texts);
  print("ResNet-50", bench::buckets_with(bench::resnet50()), texts);
  return 0;
}
