// threshold.cu: threshold quantisation in device memory. A thread block takes a block of quanta
// (wire/quanta.h) from the gradient to its bytes; the last one to end steers the thresholds. A
// reader has a warp per rank, which turns a block into bits; then all threads add in rank order.
// The lengths of blocks, and their code words in parallel: uneven.cuh.
// SPDX-License-Identifier: Apache-2.0
#include <cub/block/block_scan.cuh>

#include "thinwire/compress/coded.cuh"
#include "thinwire/compress/frames.cuh"
#include "thinwire/compress/threshold_rule.h"
#include "thinwire/compress/uneven.cuh"
#include "thinwire/kernels/threshold.h"
#include "thinwire/memory/quota.h"
#include "thinwire/wire/golomb_rule.h"
#include "thinwire/wire/quanta.h"

namespace thinwire {
namespace {

using namespace coded;
using namespace threshold_rule;
using Block = ThresholdCut::Block;
using Segment = ThresholdCut::Segment;

using uneven::threads, uneven::warps;
constexpr std::uint32_t plane_words = quanta_block / 32;  // of one plane of a block
constexpr unsigned estimate_threads = 1024;
constexpr std::uint32_t bins = 2048;

// The threshold of a segment, and what the blocks of a step tell about it.
struct State {
  double next = 0;    // of the next step; 0: unknown
  double before = 0;  // before the last step
  float now = 0;
  std::uint32_t largest = 0;  // rest, as bits
  std::uint32_t sent = 0;
  std::uint32_t unsound = 0;
};

// A bucket on the device.
struct Quanta {
  uneven::Rooms rooms;
  std::uint32_t segment_count, head;
  const Block* blocks;
  const Segment* segments;
  const std::uint32_t* ranks;  // per segment: which of its samples, from the largest on, is tau
  State* states;
  bool steers, keeps;
};

struct Planes {
  std::uint32_t plus[plane_words], minus[plane_words];
};

// ---- the first threshold

// The input of the codec before the momentum contains this step; the same bits as take_in().
template <typename E>
__device__ float fed_before(const Feed<E>& feed, std::uint32_t i) {
  const float g = E::widen(feed.gradient[i]);
  if (feed.u == nullptr) return g;
  const float now = feed.nesterov ? feed.momentum * (feed.u[i] + g) : feed.momentum * feed.u[i] + g;
  return feed.nesterov ? now + g : now;
}

// The `rank`-th largest of the samples' magnitudes, as bits: by the histogram of their upper bits,
// then of the next ones.
template <typename E>
__device__ std::uint32_t nth_largest(const Feed<E>& feed, const Segment& segment,
                                     std::uint32_t rank) {
  using Scan = cub::BlockScan<std::uint32_t, estimate_threads>;
  __shared__ typename Scan::TempStorage scan;
  __shared__ std::uint32_t histogram[bins], found, above;
  const std::uint32_t samples = min(segment.count, most_samples);
  std::uint32_t prefix = 0;
  for (int shift = 20, upper = 31; shift >= 0; upper = shift, shift -= 10) {
    for (std::uint32_t i = threadIdx.x; i < bins; i += estimate_threads) histogram[i] = 0;
    __syncthreads();
    for (std::uint32_t k = threadIdx.x; k < samples; k += estimate_threads) {
      const std::uint32_t i = segment.first + sample_at(k, segment.count, samples);
      const float fed = fed_before(feed, i);
      const float x = fabsf(feed.v == nullptr ? fed : fed + feed.v[i]);
      const std::uint32_t bits = within_limit(fed) ? std::bit_cast<std::uint32_t>(x) : 0;
      if (bits >> upper == prefix)
        atomicAdd(&histogram[bits >> shift & ((1u << (upper - shift)) - 1)], 1);
    }
    __syncthreads();
    // Thread 0 has the highest bins, so that the scan counts from the largest down.
    const std::uint32_t high = bins - 1 - 2 * threadIdx.x;
    const std::uint32_t mine[2] = {histogram[high], histogram[high - 1]};
    std::uint32_t before = 0;
    Scan(scan).ExclusiveSum(mine[0] + mine[1], before);
    for (std::uint32_t k = 0; k < 2; before += mine[k++]) {
      if (before >= rank || rank > before + mine[k]) continue;
      found = high - k;
      above = before;
    }
    __syncthreads();
    prefix = prefix << (upper - shift) | found;
    rank -= above;
    __syncthreads();
  }
  return prefix;
}

template <typename E>
__global__ void __launch_bounds__(estimate_threads) estimate(const Feed<E> feed, const Quanta on) {
  State& state = on.states[blockIdx.x];
  const double known = state.next;
  __syncthreads();
  float now = static_cast<float>(known);
  if (known == 0) {
    const std::uint32_t bits = nth_largest(feed, on.segments[blockIdx.x], on.ranks[blockIdx.x]);
    now = fminf(fmaxf(std::bit_cast<float>(bits), smallest), largest);
  }
  if (threadIdx.x != 0) return;
  state.before = known;
  state.now = now;
}

// ---- writing

// The bytes of a block from its planes: quanta_encode(). `coded` has as many words as both planes,
// and they are zero.
__device__ std::uint32_t write_block(const Planes& planes, std::uint32_t count,
                                     std::uint32_t* coded, std::uint32_t* out,
                                     std::uint32_t& sent) {
  constexpr std::uint32_t each = plane_words / threads;
  const std::uint32_t words = (count + 31) / 32;
  std::uint32_t mine = 0, last = 0;
  for (std::uint32_t k = 0; k < each; ++k) {
    const std::uint32_t w = each * threadIdx.x + k;
    const std::uint32_t bits = w < words ? planes.plus[w] | planes.minus[w] : 0;
    mine += __popc(bits);
    if (bits != 0) last = 32 * w + 32 - __clz(static_cast<int>(bits));
  }
  const uneven::Before before = uneven::scan<threads>(mine, last);
  sent = before.all;
  if (sent == 0) return 0;
  const Golomb golomb(quanta_divisor(sent, count));
  const auto for_each = [&](const auto& body) {
    std::uint32_t next = before.last;
    for (std::uint32_t k = 0; k < each; ++k) {
      const std::uint32_t w = each * threadIdx.x + k;
      if (w >= words) break;
      for (std::uint32_t bits = planes.plus[w] | planes.minus[w]; bits != 0; bits &= bits - 1) {
        const std::uint32_t bit = static_cast<std::uint32_t>(__ffs(static_cast<int>(bits))) - 1;
        body(golomb.codeword(32 * w + bit - next), planes.minus[w] >> bit & 1u);
        next = 32 * w + bit + 1;
      }
    }
  };
  std::uint32_t length = 0;
  for_each([&](const Golomb::Codeword& code, std::uint32_t) {
    length += static_cast<std::uint32_t>(code.zeros) + 2 + code.tail_bits;
  });
  const uneven::Before bits = uneven::scan<threads, 1>(length, 0);
  const unsigned head = quanta_head_bits(count);
  const std::uint32_t bytes = (head + bits.all + 7) / 8, dense = quanta_dense_bytes(count);
  if (bytes >= dense) {
    const std::uint32_t half = quanta_plane_bytes(count);
    auto* const to = reinterpret_cast<std::uint8_t*>(out);
    for (std::uint32_t i = threadIdx.x; i < dense; i += threads) {
      const std::uint32_t at = i < half ? i : i - half;
      to[i] = static_cast<std::uint8_t>((i < half ? planes.plus : planes.minus)[at / 4] >>
                                        8 * (at % 4));
    }
    return dense;
  }
  if (threadIdx.x == 0 && head > 0) uneven::set_bits(coded, 0, sent - 1);
  std::uint32_t at = head + bits.sum;
  for_each([&](const Golomb::Codeword& code, std::uint32_t negative) {
    at += static_cast<std::uint32_t>(code.zeros);
    uneven::set_bits(coded, at,
                     1 | code.tail << 1 | std::uint64_t{negative} << (1 + code.tail_bits));
    at += 2 + code.tail_bits;
  });
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < (bytes + 3) / 4; i += threads) out[i] = coded[i];
  return bytes;
}

template <typename T>
__device__ Four<T> load_some(const T* from, std::uint32_t i, std::uint32_t count, bool vectors) {
  if (vectors && i + 4 <= count) return load_four(from, i / 4);
  Four<T> four{};
#pragma unroll
  for (unsigned k = 0; k < 4; ++k)
    if (i + k < count) four.at[k] = from[i + k];
  return four;
}

__device__ inline void store_some(float* to, std::uint32_t i, std::uint32_t count, bool vectors,
                                  const Four<float>& four) {
  if (vectors && i + 4 <= count) return store_four(to, i / 4, four);
#pragma unroll
  for (unsigned k = 0; k < 4; ++k)
    if (i + k < count) to[i + k] = four.at[k];
}

// What the threads of a block find.
struct Found {
  std::uint32_t largest, bad;
};

// Sets the bits of planes that are zero, and leaves in the memory what stays.
template <typename E, bool has_u, bool has_v>
__device__ void sweep_block(const Feed<E>& feed, const Block& block, float tau, Planes& planes,
                            Found& found) {
  using Stored = typename E::Stored;
  constexpr unsigned fours = has_u ? 2 : 4;  // of a thread under way at once
  const Stored* const gradient = feed.gradient + block.first;
  float* const u = has_u ? feed.u + block.first : nullptr;
  float* const v = has_v ? feed.v + block.first : nullptr;
  const bool vectors = block.first % 4 == 0 &&
                       reinterpret_cast<std::uintptr_t>(gradient) % alignof(Four<Stored>) == 0;
  std::uint32_t largest = 0;
  bool bad = false;
  for (std::uint32_t base = 4 * threadIdx.x; base < block.count; base += 4 * fours * threads) {
    Four<Stored> g[fours];
    Four<float> us[fours], vs[fours];
#pragma unroll
    for (unsigned f = 0; f < fours; ++f) {
      const std::uint32_t i = base + 4 * f * threads;
      g[f] = load_some(gradient, i, block.count, vectors);
      if constexpr (has_u) us[f] = load_some(u, i, block.count, vectors);
      if constexpr (has_v) vs[f] = load_some(v, i, block.count, vectors);
    }
#pragma unroll
    for (unsigned f = 0; f < fours; ++f) {
      const std::uint32_t i = base + 4 * f * threads;
      std::uint32_t plus = 0, minus = 0;
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) {  // zeros behind the end send nothing
        float fed = E::widen(g[f].at[k]);
        if constexpr (has_u) {
          const float before = us[f].at[k];
          const float now =
              feed.nesterov ? feed.momentum * (before + fed) : feed.momentum * before + fed;
          us[f].at[k] = now;
          fed = feed.nesterov ? now + fed : now;
        }
        bad = bad || !within_limit(fed);
        if (!within_limit(fed)) continue;
        float x = fed;
        if constexpr (has_v) x += vs[f].at[k];
        const Quantum quantum = quantum_of(tau, x);
        if constexpr (has_v) vs[f].at[k] = quantum.rest;
        largest = max(largest, std::bit_cast<std::uint32_t>(fabsf(quantum.rest)));
        if (quantum.sends > 0) plus |= 1u << k;
        if (quantum.sends < 0) minus |= 1u << k;
      }
      if (i >= block.count) continue;
      if (plus != 0) atomicOr(planes.plus + i / 32, plus << i % 32);
      if (minus != 0) atomicOr(planes.minus + i / 32, minus << i % 32);
      if constexpr (has_u) store_some(u, i, block.count, vectors, us[f]);
      if constexpr (has_v) store_some(v, i, block.count, vectors, vs[f]);
    }
  }
  largest = __reduce_max_sync(~0u, largest);
  bad = __any_sync(~0u, bad) != 0;
  if (threadIdx.x % warp != 0) return;
  atomicMax(&found.largest, largest);
  if (bad) found.bad = 1;
}

// The last block: the head of the payload, its length, and the next thresholds.
__device__ void finish(const Quanta& on, std::uint8_t* payload, FrameState* frame) {
  const std::uint32_t end =
      uneven::lay_out(on.rooms, on.head,
                      reinterpret_cast<std::uint16_t*>(payload + head_bytes(on.segment_count, 0)));
  for (std::uint32_t s = threadIdx.x; s < on.segment_count; s += threads) {
    State& state = on.states[s];
    const float tau = state.now;
    reinterpret_cast<float*>(payload + head_bytes(0, 0))[s] = tau;
    const Sweep sweep{__ldcg(&state.sent), on.segments[s].wanted,
                      std::bit_cast<float>(__ldcg(&state.largest))};
    if (on.steers && __ldcg(&state.unsound) == 0)
      state.next = steered(state.next, tau, sweep, on.keeps);
    state.sent = state.largest = state.unsound = 0;
  }
  if (threadIdx.x != 0) return;
  *reinterpret_cast<std::uint32_t*>(payload) = layout;
  frame->payload = end;
}

template <typename E, bool has_u, bool has_v>
__global__ void __launch_bounds__(threads, 4)
    write_blocks(const Feed<E> feed, const Quanta on, std::uint8_t* payload, FrameState* frame,
                 Verdict* verdict) {
  __shared__ Planes planes;
  __shared__ std::uint32_t coded[2 * plane_words];
  __shared__ Found found;
  for (std::uint32_t i = threadIdx.x; i < plane_words; i += threads)
    planes.plus[i] = planes.minus[i] = coded[i] = coded[plane_words + i] = 0;
  if (threadIdx.x == 0) found = {0, 0};
  __syncthreads();
  await_previous();
  if (blockIdx.x < on.rooms.count) {
    const Block block = on.blocks[blockIdx.x];
    State& state = on.states[block.segment];
    sweep_block<E, has_u, has_v>(feed, block, state.now, planes, found);
    __syncthreads();
    std::uint32_t sent = 0;
    const std::uint32_t length =
        write_block(planes, block.count, coded, on.rooms.of(blockIdx.x), sent);
    if (threadIdx.x == 0) {
      on.rooms.lengths[blockIdx.x] = length;
      atomicAdd(&state.sent, sent);
      atomicMax(&state.largest, found.largest);
      if (found.bad != 0) {
        atomicExch(&state.unsound, 1u);
        report_unsound(frame, verdict);
      }
    }
  }
  if (block_frame::is_last_block(on.rooms.done)) finish(on, payload, frame);
}

// ---- reading

// One warp: sets the bits of a block shorter than the dense form, as quanta_add_sparse() reads it.
__device__ bool read_sparse(WordReader reader, std::uint64_t bits, std::uint32_t count,
                            Planes& planes) {
  const unsigned head = quanta_head_bits(count);
  const std::uint32_t sent =
      static_cast<std::uint32_t>(reader.peek() & ((std::uint64_t{1} << head) - 1)) + 1;
  if (sent > count) return false;
  const Golomb golomb(quanta_divisor(sent, count));
  const auto skip = [&](WordReader& at) {
    std::uint64_t gap = 0;
    const Status status = golomb_read(at, golomb, count, gap);
    at.skip(1);
    return static_cast<std::uint32_t>(status.ok() && gap < count ? gap : count) + 1;
  };
  const uneven::Share share = uneven::share_out(reader, skip, head, bits);
  bool sound = share.all >= sent;
  std::uint32_t next = share.next;
  reader.seek(share.from);
  for (std::uint32_t rank = share.rank; sound && rank < sent && reader.position() < share.until;
       ++rank) {
    std::uint64_t gap = 0;
    const Status status = golomb_read(reader, golomb, count, gap);
    const std::uint64_t i = next + gap;
    const bool negative = (reader.peek() & 1) != 0;
    reader.skip(1);
    sound = status.ok() && i < count && !reader.overrun();
    // Behind the last one only zeros to the end of a byte.
    if (rank == sent - 1 && ((reader.position() + 7) / 8 != bits / 8 || reader.peek() != 0))
      sound = false;
    if (!sound) break;
    atomicOr((negative ? planes.minus : planes.plus) + i / 32, 1u << i % 32);
    next = static_cast<std::uint32_t>(i) + 1;
  }
  return __all_sync(~0u, sound) != 0;
}

__device__ bool read_dense(const std::uint32_t* words, std::uint64_t start, std::uint32_t count,
                           Planes& planes) {
  const std::uint64_t half = 8 * std::uint64_t{quanta_plane_bytes(count)};
  WordReader plus(words, start, half), minus(words, start + half, half);
  bool sound = true;
  for (std::uint32_t i = threadIdx.x % warp; i < (count + 31) / 32; i += warp) {
    plus.seek(32 * i);
    minus.seek(32 * i);
    const auto p = static_cast<std::uint32_t>(plus.peek());
    const auto m = static_cast<std::uint32_t>(minus.peek());
    sound = sound && (p & m) == 0 && (count - 32 * i >= 32 || (p | m) >> (count - 32 * i) == 0);
    planes.plus[i] = p;
    planes.minus[i] = m;
  }
  return __all_sync(~0u, sound) != 0;
}

// One warp: the planes of a block that starts at a bit of aligned words.
__device__ bool read_block(const std::uint32_t* words, std::uint64_t start, std::uint32_t length,
                           std::uint32_t count, Planes& planes) {
  if (length == quanta_dense_bytes(count)) return read_dense(words, start, count, planes);
  for (std::uint32_t i = threadIdx.x % warp; i < (count + 31) / 32; i += warp)
    planes.plus[i] = planes.minus[i] = 0;
  __syncwarp();
  const std::uint64_t bits = std::uint64_t{8} * length;
  return length == 0 || read_sparse(WordReader(words, start, bits), bits, count, planes);
}

// One block per rank: checks the head of its payload, and finds where the blocks start.
__global__ void __launch_bounds__(threads)
    find_blocks(const BlockPayloads in, const Quanta on, std::uint32_t* starts) {
  await_previous();
  if (in.verdict->void_step()) return;
  const std::uint32_t rank = blockIdx.x, bytes = in.opened[rank].bytes;
  const std::uint8_t* const payload = block_frame::payload_of(in, rank);
  if (bytes < on.head) {
    if (threadIdx.x == 0) block_frame::accuse(in.verdict, Code::truncated, rank, in.bucket);
    return;
  }
  bool bad = *reinterpret_cast<const std::uint32_t*>(payload) != layout;
  const auto* const taus = reinterpret_cast<const float*>(payload + head_bytes(0, 0));
  for (std::uint32_t s = threadIdx.x; s < on.segment_count; s += threads)
    bad = bad || !(taus[s] >= smallest && taus[s] <= largest);
  const auto* const directory =
      reinterpret_cast<const std::uint16_t*>(payload + head_bytes(on.segment_count, 0));
  const bool fits = uneven::find_starts(
      on.rooms.count, on.head, bytes, directory, starts + std::size_t{rank} * (on.rooms.count + 1),
      [&](std::uint32_t block, std::uint32_t length) {
        return length <= quanta_dense_bytes(on.blocks[block].count);
      });
  bad = __syncthreads_or(bad) != 0;
  if (threadIdx.x == 0 && (bad || !fits))
    block_frame::accuse(in.verdict, Code::bad_value, rank, in.bucket);
}

template <typename E>
__device__ void store_four_sums(const float* sum, typename E::Stored* average, std::uint32_t i,
                                std::uint32_t count, Verdict* verdict) {
  using Type = typename E::Stored;
  Type element[4];
#pragma unroll
  for (unsigned k = 0; k < 4; ++k) element[k] = i + k < count ? narrowed<E>(sum[k], verdict) : 0;
  if (reinterpret_cast<std::uintptr_t>(average) % alignof(Four<Type>) == 0 && i + 4 <= count) {
    store_four_once(average, i / 4, Four<Type>{element[0], element[1], element[2], element[3]});
  } else {
#pragma unroll
    for (unsigned k = 0; k < 4; ++k)
      if (i + k < count) average[i + k] = element[k];
  }
}

// The elements of a block that are summed at once: a few, so that many blocks are under way; all of
// them where not all ranks fit into the planes.
constexpr std::uint32_t part_elements = 16 * threads;

// Adds the quanta of `ranks` planes, in their order, to `count` sums from element `first` on. Each
// thread has elements of its own, sixteen side by side, so that nobody waits.
__device__ void add_planes(const Planes* planes, const float* taus, std::uint32_t ranks,
                           std::uint32_t first, std::uint32_t count, float* sums) {
  for (std::uint32_t at = 16 * threadIdx.x; at < count; at += part_elements) {
    const std::uint32_t word = (first + at) / 32, shift = (first + at) % 32;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      const std::uint32_t minus = planes[r].minus[word] >> shift & 0xffffu;
      std::uint32_t some = (planes[r].plus[word] >> shift & 0xffffu) | minus;
      for (; some != 0; some &= some - 1) {
        const std::uint32_t bit = static_cast<std::uint32_t>(__ffs(static_cast<int>(some))) - 1;
        sums[at + bit] += (minus >> bit & 1u) != 0 ? -taus[r] : taus[r];
      }
    }
  }
}

// One block of quanta: of eight ranks at a time, a warp per rank finds the bits.
template <typename E>
__global__ void __launch_bounds__(threads, 4)
    average_blocks(const BlockPayloads in, const Quanta on, const std::uint32_t* starts,
                   float share, typename E::Stored* average) {
  extern __shared__ float4 shared[];
  __shared__ float taus[warps];
  auto* const planes = reinterpret_cast<Planes*>(shared);
  auto* const sums = reinterpret_cast<float*>(planes + warps);
  const std::uint32_t part = in.ranks > warps ? quanta_block : part_elements;
  for (std::uint32_t i = threadIdx.x; i < part; i += threads) sums[i] = 0;
  await_previous();
  // Another bucket's fault does not matter here: conclude() comes after all of them.
  const Verdict verdict = *in.verdict;
  if (verdict.void_step() || verdict.unsound != 0) return;
  const Block block = on.blocks[blockIdx.x];
  const unsigned mine = threadIdx.x / warp;
  for (std::uint32_t base = 0; base < in.ranks; base += warps) {
    const std::uint32_t rank = base + mine;
    if (rank < in.ranks) {
      const std::uint32_t* const start = starts + std::size_t{rank} * (on.rooms.count + 1);
      const std::uint32_t from = start[blockIdx.x], length = start[blockIdx.x + 1] - from;
      const auto* const words =
          reinterpret_cast<const std::uint32_t*>(in.slots + rank * in.slot_bytes);
      const bool sound = read_block(words, 8 * (block_header_bytes + std::uint64_t{from}), length,
                                    block.count, planes[mine]);
      if (threadIdx.x % warp == 0) {
        const auto* const tau = reinterpret_cast<const float*>(block_frame::payload_of(in, rank) +
                                                               head_bytes(block.segment, 0));
        taus[mine] = *tau * share;
        if (!sound) block_frame::accuse(in.verdict, Code::bad_value, rank, in.bucket);
      }
    }
    __syncthreads();
    const bool last = base + warps >= in.ranks;
    for (std::uint32_t first = 0; first < block.count; first += part) {
      const std::uint32_t count = min(part, block.count - first);
      add_planes(planes, taus, min(warps, in.ranks - base), first, count, sums);
      __syncthreads();
      if (!last) continue;
      for (std::uint32_t i = 4 * threadIdx.x; i < count; i += 4 * threads) {
        store_four_sums<E>(sums + i, average + block.first, first + i, block.count, in.verdict);
        *reinterpret_cast<float4*>(sums + i) = {};
      }
      __syncthreads();
    }
  }
}

// Takes a void step back, as CodedCompressor::undo() and forget() do.
template <typename E>
__global__ void __launch_bounds__(threads)
    take_back(const Feed<E> feed, const Quanta on, typename E::Stored* gradient, float fill,
              const Verdict* verdict) {
  __shared__ Planes planes;
  if (!verdict->void_step()) return;
  const bool forget = verdict->unsound != 0;
  const Block block = on.blocks[blockIdx.x];
  if (feed.v != nullptr && threadIdx.x < warp)
    read_block(on.rooms.of(blockIdx.x), 0, on.rooms.lengths[blockIdx.x], block.count, planes);
  __syncthreads();
  const float tau = on.states[block.segment].now;
  for (std::uint32_t k = threadIdx.x; k < block.count; k += threads) {
    const std::uint32_t i = block.first + k;
    if (feed.v != nullptr) {
      const float sent = (planes.plus[k / 32] >> k % 32 & 1u) != 0    ? tau
                         : (planes.minus[k / 32] >> k % 32 & 1u) != 0 ? -tau
                                                                      : 0.0f;
      feed.v[i] = forget ? taken_out({Accumulate::residual}, feed.again(i), sent, {0, feed.v[i]}).v
                         : feed.v[i] + sent;
    }
    if (feed.u != nullptr && forget) feed.u[i] = 0;
    gradient[i] = E::narrow(fill);
  }
  if (!forget || !on.steers || blockIdx.x != 0) return;
  for (std::uint32_t s = threadIdx.x; s < on.segment_count; s += threads)
    on.states[s].next = on.states[s].before;
}

class ThresholdCudaCodec final : public CudaCodec {
 public:
  ThresholdCudaCodec(const ThresholdSettings& settings, const Bucket& bucket, int ranks, bool sends,
                     bool keeps, Device device)
      : name_("bucket" + std::to_string(bucket.id)),
        cut_(settings, bucket),
        ranks_(static_cast<std::uint32_t>(ranks)),
        given_(settings.tau > 0),
        shared_(warps * sizeof(Planes) +
                (ranks_ > warps ? quanta_block : part_elements) * sizeof(float)),
        memory_(longest(cut_), ranks, sends, device) {
    std::vector<std::uint32_t> nth;
    for (const Segment& segment : cut_.segments) {
      const std::size_t samples = std::min(segment.count, most_samples);
      nth.push_back(static_cast<std::uint32_t>(Quota::of(samples, settings.density).wanted));
    }
    State state;
    state.next = state.before = settings.tau;
    state.now = static_cast<float>(settings.tau);
    blocks_ = uploaded(cut_.blocks, device);
    segments_ = uploaded(cut_.segments, device);
    nth_ = uploaded(nth, device);
    states_ = uploaded(std::vector<State>(cut_.segments.size(), state), device);
    on_.rooms = memory_.rooms();
    on_.segment_count = static_cast<std::uint32_t>(cut_.segments.size());
    on_.head = static_cast<std::uint32_t>(cut_.head);
    on_.blocks = blocks_.as<Block>();
    on_.segments = segments_.as<Segment>();
    on_.ranks = nth_.as<std::uint32_t>();
    on_.states = states_.as<State>();
    on_.steers = !given_;
    on_.keeps = keeps;
    for (const DType type : {DType::f32, DType::f16, DType::bf16})
      with_element(type, "threshold", [&](auto element) {
        allow_shared_memory(average_blocks<decltype(element)>, shared_);
      });
  }

  BlockRule payload_rule() const override {
    return {cut_.head + cut_.dense, false, Code::mismatch};
  }
  bool remembers() const override { return true; }
  const Buffer* state() const override { return given_ ? nullptr : &states_; }

  void encode(const CodedStep& step) override {
    with_element(step.gradient.dtype, "threshold", [&](auto element) {
      using E = decltype(element);
      const Feed<E> feed = feed_of<E>(step);
      const cudaStream_t stream = handle_of(step.stream);
      if (!given_ && on_.segment_count > 0)
        estimate<E><<<on_.segment_count, estimate_threads, 0, stream>>>(feed, on_);
      const unsigned blocks = std::max(1u, on_.rooms.count);
      const auto write = [&](auto kernel) {
        launch_early(kernel, blocks, threads, step.stream, feed, on_, step.payload, step.frame,
                     step.verdict);
      };
      if (step.u != nullptr)
        write(write_blocks<E, true, true>);
      else if (step.v != nullptr)
        write(write_blocks<E, false, true>);
      else
        write(write_blocks<E, false, false>);
      launch_early(uneven::close_up, blocks_for(blocks, warps), threads, step.stream, on_.rooms,
                   step.payload);
    });
    check_launch("threshold");
  }

  void average(const BlockPayloads& payloads, float share, TensorView average,
               Stream stream) override {
    std::uint32_t* const starts = memory_.starts();
    launch_early(find_blocks, ranks_, threads, stream, payloads, on_, starts);
    if (on_.rooms.count > 0) {
      with_element(average.dtype, "threshold", [&](auto element) {
        using E = decltype(element);
        launch_early_with(average_blocks<E>, on_.rooms.count, threads, shared_, stream, payloads,
                          on_, starts, share, static_cast<typename E::Stored*>(average.data));
      });
    }
    check_launch("threshold");
  }

  void conclude(const CodedStep& step, float fill) override {
    if (on_.rooms.count == 0) return;
    with_element(step.gradient.dtype, "threshold", [&](auto element) {
      using E = decltype(element);
      take_back<E><<<on_.rooms.count, threads, 0, handle_of(step.stream)>>>(
          feed_of<E>(step), on_, static_cast<typename E::Stored*>(step.gradient.data), fill,
          step.verdict);
    });
    check_launch("threshold");
  }

  void visit_state(StateVisitor& visitor, Stream stream) override {
    if (given_) return;
    std::vector<State> states(cut_.segments.size());
    copy_bytes(states.data(), states_.data(), states_.size(), stream);
    synchronize(stream);
    for (std::size_t k = 0; k < states.size(); ++k)
      visitor.number(name_ + "/tau" + std::to_string(k), states[k].next, Share::local);
    copy_bytes(states_.data(), states.data(), states_.size(), stream);
    synchronize(stream);
  }

 private:
  static std::vector<std::uint32_t> longest(const ThresholdCut& cut) {
    std::vector<std::uint32_t> bytes;
    for (const Block& block : cut.blocks) bytes.push_back(quanta_dense_bytes(block.count));
    return bytes;
  }

  std::string name_;  // of the bucket, for the state
  ThresholdCut cut_;
  std::uint32_t ranks_;
  bool given_;
  std::size_t shared_;  // bytes of average_blocks()
  uneven::RoomMemory memory_;
  Quanta on_{};
  Buffer blocks_, segments_, nth_, states_;
};

}  // namespace

std::unique_ptr<CudaCodec> threshold_codec_cuda(const ThresholdSettings& settings,
                                                const Bucket& bucket, int ranks, bool sends,
                                                bool keeps, Device device) {
  return std::make_unique<ThresholdCudaCodec>(settings, bucket, ranks, sends, keeps, device);
}

}  // namespace thinwire
