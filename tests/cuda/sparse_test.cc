// sparse_test.cc: topk and dgc on a GPU against the CPU: the same frames, averages and memory, bit
// for bit, whatever the options, sizes and values.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

#include "tests/cuda/device.h"
#include "tests/gradients.h"
#include "thinwire/compress/registry.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/wire/frame.h"

namespace thinwire {
namespace {

using testing::gradient;
using testing::same_bits;
using testing::Shape;

State state_of(Compressor& compressor) {
  State state;
  StateSaver saver(state);
  compressor.visit_state(saver);
  return state;
}

// Both have the same entries; a difference is named.
std::string difference(const State& a, const State& b) {
  for (const auto& [name, entry] : a) {
    const auto found = b.find(name);
    if (found == b.end()) return "no " + name;
    if (entry.number != found->second.number)
      return name + ": " + std::to_string(entry.number) + " and " +
             std::to_string(found->second.number);
    const auto& x = entry.values;
    const auto& y = found->second.values;
    if (x.size() != y.size()) return name + ": other size";
    for (std::size_t i = 0; i < x.size(); ++i)
      if (std::memcmp(&x[i], &y[i], sizeof(float)) != 0)
        return name + "[" + std::to_string(i) + "]: " + std::to_string(x[i]) + " and " +
               std::to_string(y[i]);
  }
  return a.size() == b.size() ? "" : "another number of entries";
}

// How two frames differ, for a message.
std::string difference(std::span<const std::byte> cpu, std::span<const std::byte> gpu_frame) {
  std::string text;
  for (const auto bytes : {cpu, gpu_frame}) {
    FrameHeader header;
    std::vector<ChunkInfo> chunks;
    std::size_t used = 0;
    const Status status = read_directory(bytes, header, chunks, used);
    text += std::string(status.what) + ", " + std::to_string(used) + " bytes, chunks:";
    for (const ChunkInfo& chunk : chunks)
      text += " " + std::to_string(chunk.count) + "/" + std::to_string(chunk.indices.parameter) +
              "/" + std::to_string(chunk.indices.bytes);
    text += "; ";
  }
  std::size_t at = 20;  // the checksum differs anyway
  while (at < cpu.size() && at < gpu_frame.size() && cpu[at] == gpu_frame[at]) ++at;
  return text + "first at byte " + std::to_string(at);
}

// The ranks of a job on the CPU and, beside each, its twin on the GPU.
class Twins {
 public:
  Twins(const std::string& config, const Bucket& bucket, int ranks, Stream stream,
        std::size_t offset = 0)
      : bucket_(bucket), stream_(stream), offset_(offset) {
    for (int rank = 0; rank < ranks; ++rank) {
      const Config parsed = Config::parse(config);
      cpu_.push_back(make_compressor(parsed, bucket, {rank, ranks}));
      gpu_.push_back(make_compressor(parsed, bucket, {rank, ranks, true, true, gpu}));
    }
  }

  // One step of both. Compares frames, averages and memory. Returns whether it was skipped.
  bool step(const std::vector<std::vector<float>>& gradients) {
    const std::size_t n = cpu_.size();
    const Leg leg = cpu_[0]->leg(number_, 0), device_leg = gpu_[0]->leg(number_, 0);
    EXPECT_EQ(leg.reduction, device_leg.reduction);
    std::vector<std::vector<float>> averages = gradients;
    std::vector<std::vector<std::byte>> payloads;
    std::vector<OnGpu<float>> on_gpu;
    std::vector<OnGpu<Verdict>> verdicts;
    std::vector<std::byte> slots(n * leg.bytes);
    Buffer device_slots(Place::cuda, n * device_leg.bytes, gpu);
    std::vector<std::size_t> sizes;
    const OnGpu<std::uint64_t> written(std::vector<std::uint64_t>(1));
    std::vector<float> sum(leg.reduction == Reduction::sum ? bucket_.elements() : 0);
    for (std::size_t r = 0; r < n; ++r) {
      const double norm = squared_norm(gradients[r].data(), gradients[r].size());
      const OnGpu<double> device_norm({norm});
      std::vector<std::byte> out(leg.bytes);
      const std::size_t bytes = cpu_[r]->encode({number_, 0, {}, norm}, averages[r], out);
      on_gpu.emplace_back(gradients[r], offset_);
      verdicts.emplace_back(std::vector<Verdict>(1));
      // Poison: every byte of a slot must be written.
      std::vector<std::byte> poison(device_leg.bytes, std::byte{0xa5});
      const OnGpu<std::byte> device_out(poison);
      gpu_[r]->encode(turn(verdicts[r].data(), written.data(), device_norm.data()), view(on_gpu[r]),
                      {device_out.data(), device_leg.bytes});
      const auto got = device_out.download(stream_);
      if (leg.reduction == Reduction::gather) {
        EXPECT_EQ(written.download(stream_)[0], bytes) << "rank " << r << ", step " << number_;
        EXPECT_TRUE(bytes <= got.size() && std::memcmp(got.data(), out.data(), bytes) == 0)
            << "frame of rank " << r << ", step " << number_ << ": "
            << difference(std::span(out).first(bytes), got);
        std::memcpy(slots.data() + r * leg.bytes, out.data(), bytes);
        copy_bytes(device_slots.data() + r * device_leg.bytes, got.data(), got.size(), stream_);
        synchronize(stream_);
        sizes.push_back(bytes);
      } else {
        std::vector<float> mine(bucket_.elements()), theirs(bucket_.elements());
        std::memcpy(mine.data(), out.data(), out.size());
        std::memcpy(theirs.data(), got.data(), got.size());
        EXPECT_TRUE(std::isnan(mine[0]) ? std::isnan(theirs[0]) : same_bits(mine, theirs));
        for (std::size_t i = 0; i < mine.size(); ++i) sum[i] += mine[i];
      }
    }
    bool skipped = false;
    for (std::size_t r = 0; r < n; ++r) {
      Inbox inbox, device_inbox;
      const OnGpu<float> device_sum(sum);
      if (leg.reduction == Reduction::gather) {
        inbox = {slots, leg.bytes, sizes};
        device_inbox.data = {device_slots.data(), device_slots.size()};
        device_inbox.slot_bytes = device_leg.bytes;
      } else {
        inbox.data = std::as_bytes(std::span(sum));
        device_inbox.data = {reinterpret_cast<const std::byte*>(device_sum.data()),
                             sum.size() * sizeof(float)};
      }
      std::vector<float> average(bucket_.elements());
      const Turn cpu_turn{number_, 0, {}, 0};
      const Status status = cpu_[r]->decode(cpu_turn, inbox, average);
      EXPECT_TRUE(status.ok() || status.code == Code::skipped) << status.what;
      if (status.code == Code::skipped) {
        skipped = true;
        std::fill(average.begin(), average.end(), 0.0f);
        if (cpu_[r]->sound().value_or(true)) {
          cpu_[r]->undo(cpu_turn);
        } else {
          cpu_[r]->forget(cpu_turn, averages[r]);
        }
      }
      const Turn device_turn = turn(verdicts[r].data(), nullptr, nullptr);
      (void)gpu_[r]->decode(device_turn, device_inbox, view(on_gpu[r]));
      gpu_[r]->conclude(device_turn, view(on_gpu[r]), 0);
      EXPECT_TRUE(same_bits(on_gpu[r].download(stream_), average)) << "rank " << r;
      const Verdict verdict = verdicts[r].download(stream_)[0];
      EXPECT_EQ(verdict.skipped != 0, status.code == Code::skipped);
      EXPECT_EQ(verdict.fault, 0u);
      EXPECT_EQ(verdict.unsound == 0, cpu_[r]->sound().value_or(true));
      EXPECT_EQ(difference(state_of(*cpu_[r]), state_of(*gpu_[r])), "")
          << "rank " << r << ", step " << number_;
    }
    ++number_;
    return skipped;
  }

 private:
  Turn turn(Verdict* verdict, std::uint64_t* written, const double* norm) const {
    return {number_, 0, stream_, 0, verdict, written, norm};
  }
  static TensorView view(const OnGpu<float>& values) {
    return {values.data(), values.size(), DType::f32, gpu};
  }

  Bucket bucket_;
  Stream stream_;
  std::size_t offset_;
  std::uint64_t number_ = 0;
  std::vector<std::unique_ptr<Compressor>> cpu_, gpu_;
};

Bucket layers(std::size_t count) {
  Bucket bucket{3, {}};
  std::size_t at = 0;
  for (std::size_t part = 1; at < count; part = part * 5 + 2) {
    const std::size_t size = std::min(part, count - at);
    bucket.parameters.push_back({"p" + std::to_string(at), at, size, {}});
    at += size;
  }
  return bucket;
}

class SparseTwins : public OnDevice {
 protected:
  void run(const std::string& config, const Bucket& bucket, int ranks, int steps, Shape shape,
           std::size_t offset = 0) {
    SCOPED_TRACE(config + ", " + std::to_string(bucket.elements()) + " elements");
    Twins twins(config, bucket, ranks, stream, offset);
    for (int step = 0; step < steps; ++step) {
      std::vector<std::vector<float>> gradients;
      for (int rank = 0; rank < ranks; ++rank)
        gradients.push_back(
            gradient(shape, bucket.elements(), static_cast<std::uint64_t>(100 * step + rank)));
      twins.step(gradients);
      if (HasFailure()) return;
    }
  }
};

const char* const configs[] = {
    "dgc:density=0.01",
    "dgc:density=0.01,values=f32,select=exact,nesterov=on",
    "dgc:density=0.05,values=sign,clip=0.5",
    "dgc:density=0.1,values=bf16,quota=layer,clip=1,clip_norm=bucket",
    "dgc:density=0.02,warmup=8,values=log8,mask=off",
    "dgc:density=0.001,index=smallest",
    "dgc:density=0.03,momentum=0,index=gap,values=f16",
    "topk:density=0.01,values=f32,select=exact",
    "topk:density=0.05,values=sign,index=elias_fano",
    "topk:density=0.1,values=f16,quota=layer",
    "topk:density=1,values=f32",
    "topk:density=0.02,warmup=8,index=gap",
    "topk:density=0.02,feedback=off",
    "topk:density=0.05,feedback=off,quota=layer,values=log8",
};

TEST_F(SparseTwins, AllOptionsAndSizes) {
  for (const char* config : configs) {
    for (const std::size_t count : {0u, 1u, 2u, 31u, 4095u, 4096u, 4097u, 50'001u})
      run(config, layers(count), 2, 6, Shape::normal);
    if (HasFailure()) return;
  }
}

TEST_F(SparseTwins, AllShapes) {
  for (const char* config : configs)
    for (const Shape shape : {Shape::heavy, Shape::constant, Shape::zero})
      run(config, layers(20'011), 3, 6, shape);
}

TEST_F(SparseTwins, UnalignedGradients) {
  for (const char* config : {configs[0], configs[9]})
    for (const std::size_t offset : {1u, 2u, 3u})
      run(config, layers(30'000), 2, 3, Shape::heavy, offset);
}

TEST_F(SparseTwins, ManyRanks) { run(configs[0], layers(10'000), 9, 3, Shape::heavy); }

TEST_F(SparseTwins, LargeBuckets) {
  run("dgc:density=0.001", Bucket::single(0, "w", (std::size_t{1} << 24) + 3), 2, 3, Shape::heavy);
  run("topk:density=0.001,quota=layer", layers((std::size_t{1} << 22) + 77), 2, 3, Shape::normal);
}

TEST_F(SparseTwins, VoidSteps) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (const char* config : configs) {
    SCOPED_TRACE(config);
    const Bucket bucket = layers(9'001);
    Twins twins(config, bucket, 2, stream);
    for (std::uint64_t step = 0; step < 12; ++step) {
      std::vector<std::vector<float>> gradients;
      for (std::uint64_t rank = 0; rank < 2; ++rank)
        gradients.push_back(gradient(Shape::heavy, bucket.elements(), 10 * step + rank));
      if (step % 3 == 1) gradients[step % 2][step * 700] = step % 4 == 1 ? nan : inf;
      if (step == 5) gradients[0].assign(bucket.elements(), 3e38f);
      if (step == 8) gradients[1][17] = 1e-45f;
      const bool skipped = twins.step(gradients);
      if (step != 5) {  // clipping may bring 3e38 within the limit
        EXPECT_EQ(skipped, step % 3 == 1) << step;
      }
      if (HasFailure()) return;
    }
  }
}

// A gradient in f16 or bf16 is widened when it is read; the average is narrowed.
TEST_F(SparseTwins, GradientsOfHalves) {
  Bucket bucket = layers(30'001);
  for (const DType type : {DType::f16, DType::bf16}) {
    const Elements halves = elements_of(type, gradient(Shape::normal, bucket.elements(), 1));
    const Elements wide = elements_of(DType::f32, floats_of(type, halves));
    std::vector<std::vector<std::byte>> frames;
    std::vector<State> states;
    std::vector<Elements> averages;
    for (const DType now : {DType::f32, type}) {
      bucket.dtype = now;
      const Site site{0, 1, true, true, gpu};
      const auto one = make_compressor(Config::parse("dgc:density=0.02"), bucket, site);
      const OnGpu<std::byte> data(now == type ? halves : wide);
      const VerdictOnGpu verdict;
      const OnGpu<std::uint64_t> written(std::vector<std::uint64_t>(1));
      const Leg leg = one->leg(0, 0);
      const OnGpu<std::byte> out(std::vector<std::byte>(leg.bytes));
      const Turn turn{0, 0, stream, 0, verdict.data(), written.data(), nullptr};
      const TensorView view(data.data(), bucket.elements(), now, gpu);
      one->encode(turn, view, {out.data(), leg.bytes});
      Inbox inbox;
      inbox.data = {out.data(), leg.bytes};
      inbox.slot_bytes = leg.bytes;
      (void)one->decode(turn, inbox, view);
      one->conclude(turn, view, 0);
      frames.push_back(out.download(stream));
      averages.push_back(data.download(stream));
      states.push_back(state_of(*one));
    }
    EXPECT_EQ(frames[0], frames[1]);
    EXPECT_EQ(difference(states[0], states[1]), "");
    EXPECT_EQ(elements_of(type, floats_of(DType::f32, averages[0])), averages[1]);
  }
}

// One far chunk takes all survivors, then another: longer lists than a block has threads.
TEST_F(SparseTwins, ClusteredSurvivors) {
  const std::size_t count = 300'000;
  for (const char* config : {"dgc:density=0.01", "topk:density=0.01,index=elias_fano",
                             "dgc:density=0.01,index=gap", "topk:density=0.01,values=sign"}) {
    Twins twins(config, Bucket::single(7, "w", count), 2, stream);
    for (std::uint64_t step = 0; step < 5; ++step) {
      std::vector<std::vector<float>> gradients(2, gradient(Shape::normal, count, step));
      for (auto& one : gradients)
        for (std::size_t i = 0; i < 5000; ++i) one[step * 50'000 + i] *= 1000;
      twins.step(gradients);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace thinwire
