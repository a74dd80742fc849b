// frame_sums_test.cu: the checksum over the frames of all ranks. Sound frames give the expected sum
// without a look at each, and whatever is damaged changes it.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/device.h"
#include "thinwire/compress/frame_sums.cuh"
#include "thinwire/compress/frames.h"

namespace thinwire {
namespace {

using namespace block_frame;

__global__ void __launch_bounds__(threads) sum_kernel(const BlockPayloads in, const SumPlan plan) {
  __shared__ SumTables tables;
  if (!may_average(in)) return;
  LineSums sums(tables, plan);
  const AllFrames frames{in, plan.payload};
  std::uint32_t tile = blockIdx.x;
  for (; tile < plan.tiles; tile += gridDim.x) sums.add(frames, tile);
  sums.finish(&in.check->found);
  compare_sums(in);
}

class FrameSumsOnDevice : public OnDevice {
 protected:
  using Frames = std::vector<std::byte>;
  using Sections = std::vector<LineSection>;

  Frames frames(std::size_t ranks, std::size_t payload) const {
    const std::size_t slot = block_slot_bytes(payload);
    Frames all(ranks * slot);
    for (std::size_t r = 0; r < ranks; ++r) {
      const Bytes frame = Bytes(all).subspan(r * slot, slot);
      for (std::size_t i = 0; i < payload; ++i)
        frame[block_header_bytes + i] = static_cast<std::byte>(random_at(r, i) >> 56);
      seal_block(block_header(1, bucket_, 7), payload, frame);
    }
    return all;
  }

  // Whether the sum alone finds something.
  bool suspect(const Frames& all, std::size_t ranks, std::size_t payload, const Sections& sections,
               unsigned blocks) const {
    const FrameSums sums(payload, sections, 1, blocks, gpu);
    const BlockRule rule{payload, true, Code::mismatch};
    const BlockFramesCuda opener(static_cast<int>(ranks), rule, gpu);
    const OnGpu<std::byte> slots(all);
    const VerdictOnGpu verdict;
    Inbox inbox;
    inbox.data = {slots.data(), all.size()};
    inbox.slot_bytes = block_slot_bytes(payload);
    const BlockPayloads in =
        opener.glance(block_header(1, bucket_, 7), rule, inbox, sums, verdict.data(), stream);
    sum_kernel<<<sums.blocks(), threads, 0, handle_of(stream)>>>(in, sums.plan());
    FrameCheck check;
    copy_bytes(&check, in.check, sizeof check, stream);
    synchronize(stream);
    return check.suspect != 0;
  }

  Bucket bucket_ = Bucket::single(0, "w", 64);
};

// Sections that fill the frame: one, and two of unequal steps.
std::vector<std::vector<LineSection>> cuts(std::size_t payload) {
  const LineSection whole = whole_section(payload, 200);
  LineSection first = whole_section(payload, 4224), second = first;
  first.end = second.first = whole.first + (whole.end - whole.first) / 3;
  second.each = 17;
  return {{whole}, {first, second}, {{whole.first, whole.end, 300}}};
}

TEST_F(FrameSumsOnDevice, SoundFramesGiveTheExpectedSum) {
  for (const std::size_t ranks : {1, 2, 3, 7, 8, 9, 17})
    for (const std::size_t payload : {1, 7, 8, 9, 24, 1000, 4104, 100'003})
      for (const auto& sections : cuts(payload))
        for (const unsigned blocks : {1u, 3u, 64u})
          ASSERT_FALSE(suspect(frames(ranks, payload), ranks, payload, sections, blocks))
              << ranks << " ranks, " << payload << " bytes, " << blocks << " blocks";
}

TEST_F(FrameSumsOnDevice, DamageChangesTheSum) {
  constexpr std::size_t ranks = 4, payload = 30'011;
  const std::size_t slot = block_slot_bytes(payload);
  const Frames good = frames(ranks, payload);
  for (std::uint64_t k = 0; k < 60; ++k) {
    Frames bad = good;
    const std::size_t at = block_header_bytes + random_below(1, k, payload);
    const auto flip = static_cast<std::byte>(1u << k % 8);
    // In one frame; the same in two; the same in all.
    const std::size_t hit = k % 3 == 0 ? 1 : k % 3 == 1 ? 2 : ranks;
    for (std::size_t r = 0; r < hit; ++r) bad[(ranks - 1 - r) * slot + at] ^= flip;
    EXPECT_TRUE(suspect(bad, ranks, payload, cuts(payload)[k % 3], 5)) << "byte " << at;
  }
}

// All ranks send the same, and all lose the same part.
TEST_F(FrameSumsOnDevice, EqualFramesThatLoseTheSamePart) {
  constexpr std::size_t ranks = 8, payload = 5'000;
  const std::size_t slot = block_slot_bytes(payload);
  Frames all = frames(1, payload);
  all.resize(ranks * slot);
  for (std::size_t r = 1; r < ranks; ++r) std::copy_n(all.begin(), slot, all.begin() + r * slot);
  EXPECT_FALSE(suspect(all, ranks, payload, cuts(payload)[0], 2));
  for (std::size_t r = 0; r < ranks; ++r)
    std::fill_n(all.begin() + r * slot + 1000, 512, std::byte{});
  EXPECT_TRUE(suspect(all, ranks, payload, cuts(payload)[0], 2));
}

}  // namespace
}  // namespace thinwire
