// sparse_edges_test.cc: topk and dgc on a GPU where it could go wrong unseen: frames that somebody
// has changed, a bucket of more than 2^31 elements, a step that is replayed as a CUDA graph.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/cuda/twins.h"

namespace thinwire {
namespace {

using testing::gradient;
using testing::Shape;

class SparseEdges : public TwinTest {
 protected:
  // Changes one frame of each step at random, with and without a repaired checksum.
  void fuzz(const std::string& config, std::uint64_t steps) {
    SCOPED_TRACE(config);
    const Bucket bucket = layers(5'003);
    TwinOptions options;
    options.same_code = false;  // a GPU looks at all parts of a frame at once
    Twins twins(config, bucket, 3, stream, options);
    for (std::uint64_t step = 0; step < steps && !HasFailure(); ++step) {
      const auto draw = [&](std::uint64_t i, std::size_t below) {
        return random_below(step, i, static_cast<std::uint32_t>(below));
      };
      const std::size_t victim = draw(0, 3);
      twins.step(gradients(Shape::heavy, bucket, 3, step),
                 [&](std::size_t rank, std::vector<std::byte>& frame) {
                   if (rank != victim) return;
                   const std::uint64_t changes = 1 + draw(1, 4);
                   for (std::uint64_t i = 0; i < changes; ++i) {
                     const std::size_t at = draw(2 + 2 * i, frame.size());
                     frame[at] ^= static_cast<std::byte>(1 + draw(3 + 2 * i, 255));
                   }
                   if (draw(90, 4) == 0) frame.resize(draw(91, frame.size()));
                   if (step % 4 != 0) reseal(frame);
                 });
    }
  }
};

TEST_F(SparseEdges, ChangedFramesAreFoundOutAsOnTheCpu) {
  for (const char* config :
       {"dgc:density=0.05", "topk:density=0.05,index=elias_fano", "topk:density=0.05,index=gap",
        "dgc:density=0.05,values=sign", "topk:density=0.1,values=f32",
        "dgc:density=0.05,values=f16", "topk:density=0.02,values=log8,quota=layer"})
    fuzz(config, small_run() ? 10 : 300);
}

// Nearly all elements are 0, so that what arrives is known without a second computation.
TEST_F(SparseEdges, MoreThanTwoToThe31Elements) {
  if (small_run()) GTEST_SKIP() << "a small run";
  const std::size_t count = (std::size_t{1} << 31) + 5;
  std::size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  const auto pages = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES));
  if (free < 40 * count / 2 || pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) < 15 * count)
    GTEST_SKIP() << "needs 40 GiB of GPU memory and 30 GiB of host memory";
  const Bucket bucket = Bucket::single(0, "w", count);
  const Config config = Config::parse("topk:density=0.0000005,values=f32");
  std::vector<float> values(count);
  for (std::uint64_t i = 0; i < 500; ++i)
    values[random_at(1, i) % count] = 1.0f + static_cast<float>(i);
  values[0] = values[count - 1] = values[(std::size_t{1} << 31) - 1] = -7.0f;
  const std::vector<float> given = values;

  const auto cpu = make_compressor(config, bucket, {0, 1});
  const Leg leg = cpu->leg(0, 0);
  std::vector<std::byte> frame(leg.bytes);
  const std::size_t bytes = cpu->encode({0, 0, {}, 0}, values, frame);

  const auto one = make_compressor(config, bucket, {0, 1, true, true, gpu});
  const Buffer data(Place::cuda, count * sizeof(float), gpu), out(Place::cuda, leg.bytes, gpu);
  const VerdictOnGpu verdict;
  const OnGpu<std::uint64_t> written(std::vector<std::uint64_t>(1));
  copy_bytes(data.data(), given.data(), data.size(), stream);
  const Turn turn{0, 0, stream, 0, verdict.data(), written.data(), nullptr};
  const TensorView view(data.data(), count, DType::f32, gpu);
  one->encode(turn, view, {out.data(), leg.bytes});
  const Inbox inbox{{out.data(), leg.bytes}, leg.bytes, {}, -1};
  (void)one->decode(turn, inbox, view);
  one->conclude(turn, view, 0);
  std::vector<std::byte> got(leg.bytes);
  copy_bytes(got.data(), out.data(), got.size(), stream);
  copy_bytes(values.data(), data.data(), data.size(), stream);
  synchronize(stream);
  EXPECT_EQ(written.download(stream)[0], bytes);
  EXPECT_EQ(first_difference(std::span(frame).first(bytes), got), "");
  EXPECT_EQ(verdict.download(stream).fault, 0u);
  EXPECT_EQ(std::memcmp(values.data(), given.data(), data.size()), 0);
}

// A whole step of one worker: gradient in memory to average in memory.
class Steps {
 public:
  Steps(const std::string& config, const Bucket& bucket, const std::vector<float>& gradient)
      : compressor_(make_compressor(Config::parse(config), bucket, {0, 1, true, true, gpu})),
        given_(gradient),
        values_(gradient),
        leg_(compressor_->leg(0, 0)),
        out_(Place::cuda, leg_.bytes, gpu),
        written_(std::vector<std::uint64_t>(1)) {}

  void run(Stream stream) {
    copy_bytes(values_.data(), given_.data(), given_.bytes(), stream);
    const Turn turn{0, 0, stream, 0, verdict_.data(), written_.data(), nullptr};
    const TensorView view(values_.data(), values_.size(), DType::f32, gpu);
    std::byte* const out =
        leg_.in_place ? reinterpret_cast<std::byte*>(values_.data()) : out_.data();
    compressor_->encode(turn, view, {out, leg_.bytes});
    const std::size_t slot = leg_.reduction == Reduction::gather ? leg_.bytes : 0;
    (void)compressor_->decode(turn, {{out, leg_.bytes}, slot, {}, -1}, view);
    compressor_->conclude(turn, view, 0);
  }

  std::vector<float> average(Stream stream) const { return values_.download(stream); }
  State state() { return state_of(*compressor_); }

 private:
  std::unique_ptr<Compressor> compressor_;
  OnGpu<float> given_, values_;
  Leg leg_;
  Buffer out_;
  OnGpu<std::uint64_t> written_;
  VerdictOnGpu verdict_;
};

TEST_F(SparseEdges, AStepReplayedAsAGraphHasTheSameBits) {
  for (const char* config : {"dgc:density=0.01", "dgc:density=0.01,select=exact,nesterov=on",
                             "topk:density=0.01,index=gap", "dense", "fp16", "bf16"}) {
    SCOPED_TRACE(config);
    const Bucket bucket = layers(200'003);
    const std::vector<float> values = gradient(Shape::heavy, bucket.elements(), 1);
    Steps plain(config, bucket, values), replayed(config, bucket, values);
    plain.run(stream);
    replayed.run(stream);  // the first step may allocate
    const auto on = static_cast<cudaStream_t>(stream.handle);
    cudaGraph_t graph{};
    cudaGraphExec_t ready{};
    ASSERT_EQ(cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    replayed.run(stream);
    ASSERT_EQ(cudaStreamEndCapture(on, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&ready, graph, 0), cudaSuccess);
    for (int step = 0; step < 12; ++step) {
      plain.run(stream);
      ASSERT_EQ(cudaGraphLaunch(ready, on), cudaSuccess);
      EXPECT_EQ(difference(plain.average(stream), replayed.average(stream)), "") << step;
      EXPECT_EQ(difference(plain.state(), replayed.state()), "") << step;
    }
    cudaGraphExecDestroy(ready);
    cudaGraphDestroy(graph);
  }
}

}  // namespace
}  // namespace thinwire
