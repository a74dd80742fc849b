// frames.cu: block frames: checksums, headers compared.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "thinwire/compress/frame_sums.cuh"

namespace thinwire {
namespace {

using namespace block_frame;

// A frame's header, as kernels take it: all bytes but the checksum, with the skipped flag off.
struct HeaderWords {
  std::uint32_t at[4];
};

HeaderWords words_of(const FrameHeader& header) {
  std::byte bytes[frame_header_bytes] = {};
  FrameHeader plain = header;
  plain.skipped = false;
  write_frame_header(plain, bytes);
  HeaderWords words{};
  __builtin_memcpy(words.at, bytes, sizeof words.at);
  return words;
}

// The checksum of a frame whose payload is zeros.
std::uint32_t around_zeros(const HeaderWords& header, const BlockRule& rule,
                           const FrameSums& sums) {
  std::uint32_t crc = ~0u;
  const auto add = [&crc](std::uint32_t word) {
    crc ^= word;
    for (int k = 0; k < 4; ++k) crc = crc >> 8 ^ crc32c_entry(crc & 0xffu);
  };
  for (const std::uint32_t word : header.at) add(word);
  add(static_cast<std::uint32_t>(rule.most));
  return ~crc32c_times(crc, sums.length());
}

struct SealArguments {
  SumPlan plan;
  HeaderWords header;
  FrameState* state;
  const std::byte* source;  // where the payload is
  std::byte* frame;
  std::uint64_t slot_bytes;
  std::uint64_t payload;
  bool exact;
  std::uint32_t none, back;  // where exact: the checksum around a payload of zeros; its factor
  std::uint64_t* written;
};

__global__ void __launch_bounds__(threads) seal_kernel(const SealArguments a) {
  __shared__ SumTables tables;
  LineSums sums(tables, a.plan);
  await_previous();
  const bool skipped = a.state->unsound != 0;
  const std::uint64_t payload = a.exact ? a.payload : a.state->payload;
  const std::uint64_t end = block_header_bytes + payload;
  for (std::uint64_t i = end + thread_index(); i < a.slot_bytes; i += thread_count())
    a.frame[i] = std::byte{};
  const OneFrame lines{a.source, a.source == a.frame ? nullptr : a.frame, payload};
  for (std::uint32_t tile = blockIdx.x; tile < a.plan.tiles; tile += gridDim.x)
    sums.add(lines, tile);
  sums.finish(&a.state->crc);
  if (!is_last_block(&a.state->done) || threadIdx.x != 0) return;
  auto* const words = reinterpret_cast<std::uint32_t*>(a.frame);
  std::uint32_t header[4];
  for (int k = 0; k < 4; ++k) header[k] = a.header.at[k];
  if (skipped) header[1] |= 1u;  // byte 4
  const auto bytes = static_cast<std::uint32_t>(payload);
  for (int k = 0; k < 4; ++k) words[k] = header[k];
  const std::uint32_t sum = __ldcg(&a.state->crc);
  if (a.exact && !skipped) {
    words[crc_word] = a.none ^ crc32c_times(sum, a.back);
  } else {
    const std::uint64_t behind = line_bytes * std::uint64_t{a.plan.end} + 1 - end;
    const std::uint64_t back = crc32c_order - behind % crc32c_order;
    words[crc_word] =
        frame_checksum(header, skipped, bytes, 0) ^ (skipped ? 0 : crc32c_shift(sum, back, powers));
  }
  words[length_word] = skipped ? 0 : bytes;
  *a.written = skipped ? frame_header_bytes : end;
  a.state->crc = 0;
  a.state->unsound = 0;
  a.state->payload = 0;
}

struct OpenArguments {
  HeaderWords header;
  const std::byte* slots;
  std::uint64_t slot_bytes;
  std::uint64_t most;
  bool exact;
  Code wrong;
  std::uint32_t ranks, blocks, bucket;
  OpenedBlock* opened;
  std::uint32_t* done;
  FrameCheck* check;
  bool always;                 // else only where the check has found something
  std::uint32_t none, behind;  // of glance(): the checksum around zeros; FrameSums::behind()
  Verdict* verdict;
};

// What open_block() checks before the checksum. Tells whether the frame is skipped, and the bytes
// of its payload.
__device__ Code look_at(const OpenArguments& a, const std::uint32_t* words, bool& skipped,
                        std::uint32_t& bytes) {
  skipped = false;
  bytes = 0;
  if ((words[0] & 0xffffu) != (a.header.at[0] & 0xffffu)) return Code::bad_magic;
  if ((words[0] >> 16 & 0xffu) != (a.header.at[0] >> 16 & 0xffu)) return Code::bad_version;
  if ((words[1] & 0xffffu) > 1) return Code::bad_value;  // flags; value coder and chunks
  skipped = (words[1] & 1u) != 0;
  if (skipped) return Code::ok;
  bytes = words[length_word];
  return bytes > a.most ? Code::truncated : Code::ok;
}

// What follows: checksum, comparison, length.
__device__ Code judge(const OpenArguments& a, const std::uint32_t* words, bool skipped,
                      std::uint32_t bytes, std::uint32_t lines_sum) {
  if (words[crc_word] != frame_checksum(words, skipped, bytes, lines_sum))
    return Code::bad_checksum;
  const bool same = words[0] == a.header.at[0] && (words[1] & ~1u) == a.header.at[1] &&
                    words[2] == a.header.at[2] && words[3] == a.header.at[3];
  if (!same) return Code::mismatch;
  return !skipped && a.exact && bytes != a.most ? a.wrong : Code::ok;
}

__global__ void __launch_bounds__(threads) open_kernel(const OpenArguments a) {
  __shared__ CrcTables tables;
  await_previous();
  if (!a.always && a.check->suspect == 0 && a.check->bad_value == 0) return;
  bool skipped = false;
  std::uint32_t bytes = 0;
  const std::uint32_t rank = blockIdx.x / a.blocks;
  const std::byte* const frame = a.slots + rank * a.slot_bytes;
  const Code first = look_at(a, reinterpret_cast<const std::uint32_t*>(frame), skipped, bytes);
  if (first == Code::ok && !skipped) {
    const std::uint32_t share =
        payload_share(tables, frame, bytes, blockIdx.x % a.blocks, a.blocks);
    if (threadIdx.x == 0) atomicXor(&a.opened[rank].crc, share);
  }
  if (!is_last_block(a.done)) return;
  for (std::uint32_t r = threadIdx.x; r < a.ranks; r += threads) {
    const auto* const words = reinterpret_cast<const std::uint32_t*>(a.slots + r * a.slot_bytes);
    Code code = look_at(a, words, skipped, bytes);
    if (code == Code::ok) code = judge(a, words, skipped, bytes, __ldcg(&a.opened[r].crc));
    if (code == Code::ok && a.opened[r].bad_value != 0) code = Code::bad_value;
    a.opened[r] = {0, static_cast<std::uint32_t>(code), bytes, skipped ? 1u : 0u, 0};
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  a.check->suspect = a.check->bad_value = 0;
  bool one_skipped = false;
  for (std::uint32_t r = 0; r < a.ranks; ++r) {
    const auto code = static_cast<Code>(a.opened[r].code);
    if (code != Code::ok) return accuse(a.verdict, code, r, a.bucket);
    one_skipped = one_skipped || a.opened[r].skipped != 0;
  }
  if (one_skipped) a.verdict->skipped = 1;
}

// One block: whether all frames look as they should, and what their checksums ask for together.
__global__ void __launch_bounds__(threads) glance_kernel(const OpenArguments a) {
  __shared__ std::uint32_t expected;
  await_previous();
  let_next_start();
  if (threadIdx.x == 0) expected = 0;
  __syncthreads();
  bool odd = false;
  for (std::uint32_t r = threadIdx.x; r < a.ranks; r += threads) {
    const auto* const words = reinterpret_cast<const std::uint32_t*>(a.slots + r * a.slot_bytes);
    bool same = words[length_word] == a.most;
    for (int k = 0; k < 4; ++k) same = same && words[k] == a.header.at[k];
    odd = odd || !same;
    if (!same) continue;
    atomicXor(&expected, summed(words[crc_word] ^ a.none, r, a.ranks, a.behind));
  }
  odd = __syncthreads_or(odd) != 0;
  if (threadIdx.x == 0) *a.check = {expected, 0, 0, odd ? 1u : 0u, 0};
}

}  // namespace

BlockFramesCuda::BlockFramesCuda(int ranks, const BlockRule& rule, Device device)
    : ranks_(static_cast<std::uint32_t>(ranks)),
      state_(Place::cuda, sizeof(FrameState), device),
      opened_(Place::cuda, ranks_ * sizeof(OpenedBlock) + sizeof(std::uint32_t), device),
      check_(Place::cuda, sizeof(FrameCheck), device),
      seal_(rule.most, {whole_section(rule.most, line_bytes * threads)}, 1,
            std::min(resident_blocks(8, device), checksum_blocks(rule.most, 1)), device) {}

void BlockFramesCuda::seal(const FrameHeader& header, const BlockRule& rule,
                           const std::byte* source, Bytes out, std::uint64_t* written,
                           Stream stream) const {
  SealArguments a{};
  a.plan = seal_.plan();
  a.header = words_of(header);
  a.state = state();
  a.source = source;
  a.frame = out.data();
  a.slot_bytes = out.size();
  a.payload = rule.most;
  a.exact = rule.exact;
  a.none = around_zeros(a.header, rule, seal_);
  a.back = seal_.back();
  a.written = written;
  launch_early(seal_kernel, seal_.blocks(), threads, stream, a);
  check_launch("seal a frame");
}

namespace {

OpenArguments open_arguments(const FrameHeader& header, const BlockRule& rule, const Inbox& inbox,
                             std::uint32_t ranks, OpenedBlock* opened, FrameCheck* check,
                             Verdict* verdict) {
  OpenArguments a{};
  a.header = words_of(header);
  a.slots = inbox.data.data();
  a.slot_bytes = inbox.slot_bytes;
  a.most = rule.most;
  a.exact = rule.exact;
  a.wrong = rule.wrong;
  a.ranks = ranks;
  a.blocks = checksum_blocks(inbox.slot_bytes, ranks);
  a.bucket = header.bucket;
  a.opened = opened;
  a.done = reinterpret_cast<std::uint32_t*>(opened + ranks);
  a.check = check;
  a.verdict = verdict;
  return a;
}

}  // namespace

void BlockFramesCuda::check_each(const FrameHeader& header, const BlockRule& rule,
                                 const Inbox& inbox, Verdict* verdict, bool always,
                                 Stream stream) const {
  OpenArguments a = open_arguments(header, rule, inbox, ranks_, opened_.as<OpenedBlock>(),
                                   check_.as<FrameCheck>(), verdict);
  a.always = always;
  // Where it has nothing to do, few blocks end sooner.
  if (!always) a.blocks = std::min(a.blocks, 16u);
  launch_early(open_kernel, ranks_ * a.blocks, threads, stream, a);
  check_launch("open frames");
}

BlockPayloads BlockFramesCuda::open(const FrameHeader& header, const BlockRule& rule,
                                    const Inbox& inbox, Verdict* verdict, Stream stream) const {
  check_each(header, rule, inbox, verdict, true, stream);
  return {inbox.data.data(), inbox.slot_bytes, opened_.as<OpenedBlock>(), verdict, ranks_,
          header.bucket,     nullptr};
}

BlockPayloads BlockFramesCuda::glance(const FrameHeader& header, const BlockRule& rule,
                                      const Inbox& inbox, const FrameSums& sums, Verdict* verdict,
                                      Stream stream) const {
  OpenArguments a = open_arguments(header, rule, inbox, ranks_, opened_.as<OpenedBlock>(),
                                   check_.as<FrameCheck>(), verdict);
  a.none = around_zeros(a.header, rule, sums);
  a.behind = sums.behind();
  launch_early(glance_kernel, 1, threads, stream, a);
  check_launch("look at frames");
  return {inbox.data.data(), inbox.slot_bytes, a.opened, verdict, ranks_, header.bucket, a.check};
}

void BlockFramesCuda::settle(const FrameHeader& header, const BlockRule& rule, const Inbox& inbox,
                             Verdict* verdict, Stream stream) const {
  check_each(header, rule, inbox, verdict, false, stream);
}

}  // namespace thinwire
