// coded.cuh: the kernels around the rules of a quantiser. Its elements form groups that share a
// scale. A team of threads (a warp, or a block for long groups) holds the x of a group in shared
// memory: it measures them, codes them, and keeps the rest, in one pass over device memory.
//
// A rule for groups of a fixed size is a struct that kernels take by value:
//
//     elements, group, room_bytes(size)   its numbers; bytes of shared memory per team
//     measure<size>(x, count)             the scale of a group, in all threads; scale.finite
//     write<size>(...)                    the group's bytes and rests; false: an x is not finite
//     refuse<size>(...)                   zeros in their place, where scale.finite is false
//     step, place(i), add(...)            decoding: `step` elements, of payloads in any memory
//     spans(first, count)                 the bytes of whole groups: one or two spans
//     value(payload, i)                   one decoded element
//
// Payloads of short groups are averaged in tiles: a block copies the lines of eight ranks to shared
// memory, adds them to the checksum of all frames, and decodes them from there, so that they are
// read once. Its first reader of a span in add() is `payload`, the second `other`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/compress/codec_cuda.h"
#include "thinwire/compress/frames.cuh"
#include "thinwire/core/element.h"
#include "thinwire/core/launch.cuh"

namespace thinwire::coded {

inline constexpr unsigned warp = 32, wide = 512;   // the sizes of teams
inline constexpr std::uint32_t warp_group = 1024;  // longest group for a warp

// The bytes of some elements in a payload: [from, to), twice; the second span may be empty.
struct Spans {
  std::uint64_t from[2], to[2];
};

template <unsigned size>
constexpr unsigned block_size = size == warp ? block_threads : size;

template <unsigned size>
__device__ unsigned team_thread() {
  return threadIdx.x % size;
}
template <unsigned size>
__device__ void team_sync() {
  if constexpr (size == warp) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

// combine(combine(a, b), c)... over the team, in any order, in every thread.
template <unsigned size, typename T, typename Combine>
__device__ T team_combine(T mine, const Combine& combine) {
  for (unsigned step = 16; step > 0; step /= 2)
    mine = combine(mine, __shfl_xor_sync(~0u, mine, step));
  if constexpr (size > warp) {
    __shared__ T parts[size / warp];
    if (threadIdx.x % warp == 0) parts[threadIdx.x / warp] = mine;
    __syncthreads();
    mine = parts[0];
    for (unsigned k = 1; k < size / warp; ++k) mine = combine(mine, parts[k]);
    __syncthreads();
  }
  return mine;
}

// The value of the team's first thread, in every thread.
template <unsigned size, typename T>
__device__ T team_first(T mine) {
  if constexpr (size == warp) {
    return __shfl_sync(~0u, mine, 0);
  } else {
    __shared__ T first;
    if (threadIdx.x == 0) first = mine;
    __syncthreads();
    const T value = first;
    __syncthreads();
    return value;
  }
}

// The gradient of a bucket and its memory.
template <typename E>
struct Feed {
  const typename E::Stored* gradient;
  float *u, *v;
  float momentum;
  bool nesterov;

  // The codec's input without the residual, once the momentum contains this step.
  __device__ float again(std::uint32_t i) const {
    const float g = E::widen(gradient[i]);
    return u == nullptr ? g : nesterov ? u[i] + g : u[i];
  }
  __device__ float x_again(std::uint32_t i) const {
    return v == nullptr ? again(i) : taken_in(again(i), v[i]);
  }
};

template <typename E>
Feed<E> feed_of(const CodedStep& step) {
  return {static_cast<const typename E::Stored*>(step.gradient.data), step.u, step.v,
          step.rule.momentum, step.rule.accumulate == Accumulate::nesterov};
}

// room[i] = x of element first + i, for a team. The momentum takes the gradient in.
template <unsigned size, typename E>
__device__ void take_in(const Feed<E>& feed, std::uint32_t first, std::uint32_t count,
                        float* room) {
  constexpr unsigned batch = 8;  // loads under way at once
  for (std::uint32_t base = team_thread<size>(); base < count; base += batch * size) {
    typename E::Stored g[batch];
    float u[batch], v[batch];
#pragma unroll
    for (unsigned k = 0; k < batch; ++k) {
      const std::uint32_t i = base + k * size;
      if (i >= count) continue;
      g[k] = feed.gradient[first + i];
      if (feed.u != nullptr) u[k] = feed.u[first + i];
      if (feed.v != nullptr) v[k] = feed.v[first + i];
    }
#pragma unroll
    for (unsigned k = 0; k < batch; ++k) {
      const std::uint32_t i = base + k * size;
      if (i >= count) continue;
      float fed = E::widen(g[k]);
      if (feed.u != nullptr) {
        const float now = feed.nesterov ? feed.momentum * (u[k] + fed) : feed.momentum * u[k] + fed;
        feed.u[first + i] = now;
        fed = feed.nesterov ? now + fed : now;
      }
      room[i] = feed.v == nullptr ? fed : taken_in(fed, v[k]);
    }
  }
}

// A group that was refused: the residual takes in what is within the limit.
template <unsigned size, typename E>
__device__ void keep_refused(const Feed<E>& feed, std::uint32_t first, std::uint32_t count) {
  if (feed.v == nullptr) return;
  for (std::uint32_t i = first + team_thread<size>(); i < first + count; i += size) {
    const float fed = feed.again(i);
    if (within_limit(fed)) feed.v[i] += fed;
  }
}

// A bit per element of a row of 32: the first four lanes of a warp write the bytes of its word.
// `room` is what is left of the bits' bytes.
__device__ inline void write_row(std::uint32_t word, std::uint8_t* at, std::uint32_t room) {
  const unsigned lane = threadIdx.x % warp;
  if (lane < 4 && lane < room) at[lane] = static_cast<std::uint8_t>(word >> 8 * lane);
}

// Up to 8 bytes from any address. Reads only words that contain some of them.
__device__ inline std::uint64_t load_bytes(const std::uint8_t* at, unsigned count) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const auto* const words = reinterpret_cast<const std::uint32_t*>(address & ~std::uintptr_t{3});
  const auto skew = static_cast<unsigned>(address & 3);
  const unsigned spanned = (skew + count + 3) / 4;
  std::uint64_t value = words[0];
  if (spanned > 1) value |= std::uint64_t{words[1]} << 32;
  value >>= 8 * skew;
  if (spanned > 2) value |= std::uint64_t{words[2]} << (64 - 8 * skew);
  return count < 8 ? value & ((std::uint64_t{1} << 8 * count) - 1) : value;
}

__device__ inline void report_unsound(FrameState* frame, Verdict* verdict) {
  frame->unsound = 1;
  verdict->unsound = 1;
}

template <typename E, unsigned size, typename Rule>
__global__ void __launch_bounds__(block_size<size>)
    encode_kernel(const Feed<E> feed, const Rule rule, const DrawKey key, std::uint8_t* payload,
                  FrameState* frame, Verdict* verdict) {
  extern __shared__ float4 shared[];
  const unsigned team = threadIdx.x / size;
  constexpr unsigned teams = block_size<size> / size;
  auto* const room =
      reinterpret_cast<float*>(reinterpret_cast<std::byte*>(shared) + team * rule.room_bytes());
  const std::uint32_t groups = (rule.elements + rule.group - 1) / rule.group;
  for (std::uint32_t k = blockIdx.x * teams + team; k < groups; k += gridDim.x * teams) {
    const std::uint32_t first = k * rule.group, count = min(rule.group, rule.elements - first);
    take_in<size>(feed, first, count, room);
    team_sync<size>();
    const auto scale = rule.template measure<size>(room, count);
    bool sound = scale.finite;
    if (sound) {
      sound = rule.template write<size>(room, first, count, scale, key, payload,
                                        feed.v == nullptr ? nullptr : feed.v + first);
    } else {
      rule.template refuse<size>(first, count, payload);
      keep_refused<size>(feed, first, count);
    }
    if (!sound) report_unsound(frame, verdict);
    team_sync<size>();
  }
}

// An average as an element. A finite one may be infinite as a half: then all ranks skip the step.
template <typename E>
__device__ typename E::Stored narrowed(float x, Verdict* verdict) {
  const typename E::Stored element = E::narrow(x);
  if (sizeof element < sizeof(float) && !is_finite(E::widen(element))) verdict->skipped = 1;
  return element;
}

template <typename E, std::uint32_t step>
__device__ void store_average(const float* sum, std::uint32_t first, std::uint32_t count,
                              typename E::Stored* average, Verdict* verdict) {
  using Type = typename E::Stored;
  const bool aligned = reinterpret_cast<std::uintptr_t>(average) % alignof(Four<Type>) == 0;
#pragma unroll
  for (std::uint32_t i = 0; i < step; i += 4) {
    if (aligned && i + 4 <= count) {
      store_four_once(
          average, (std::size_t{first} + i) / 4,
          Four<Type>{narrowed<E>(sum[i], verdict), narrowed<E>(sum[i + 1], verdict),
                     narrowed<E>(sum[i + 2], verdict), narrowed<E>(sum[i + 3], verdict)});
    } else {
#pragma unroll
      for (std::uint32_t j = i; j < i + 4; ++j)
        if (j < count) average[std::size_t{first} + j] = narrowed<E>(sum[j], verdict);
    }
  }
}

template <typename E, typename Rule>
__global__ void __launch_bounds__(block_threads)
    average_kernel(const BlockPayloads in, const Rule rule, float share,
                   typename E::Stored* average) {
  constexpr std::uint32_t step = Rule::step;
  const Verdict verdict = *in.verdict;
  if (verdict.void_step() || verdict.unsound != 0) return;
  std::uint32_t worst = ~0u;
  for (std::size_t k = thread_index(); k * step < rule.elements; k += thread_count()) {
    const auto first = static_cast<std::uint32_t>(k * step);
    const std::uint32_t count = min(step, rule.elements - first);
    const auto place = rule.place(first, count);
    float sum[step] = {};
#pragma unroll 4
    for (std::uint32_t rank = 0; rank < in.ranks; ++rank) {
      const std::uint8_t* const payload = block_frame::payload_of(in, rank);
      if (!rule.add(payload, payload, place, count, share, sum)) worst = min(worst, rank);
    }
    store_average<E, step>(sum, first, count, average, in.verdict);
  }
  if (worst != ~0u) block_frame::accuse(in.verdict, Code::bad_value, worst, in.bucket);
}

// Tiles of whole groups, eight elements per thread.
inline constexpr std::uint32_t tile_most = 8 * block_threads;
inline constexpr std::uint32_t stage_lines = 160;  // of one rank, for a tile of any rule

// Part of a payload in shared memory, read by places in the whole payload. A pointer to the start
// of the payload would lie outside of shared memory, where a GPU must not compute addresses.
struct Staged {
  const std::uint8_t* data;
  std::uint64_t first;  // the place of data[0]; may be "negative": sums wrap around

  __device__ const std::uint8_t* operator+(std::uint64_t i) const { return data + (i - first); }
  __device__ std::uint8_t operator[](std::uint64_t i) const { return data[i - first]; }
};

// The lines of a frame that hold the spans of a tile, and the place of each span among them.
struct TileLines {
  std::uint64_t first[2];
  std::uint32_t count[2];
};

__host__ __device__ inline TileLines lines_of(const Spans& spans) {
  TileLines lines{};
  for (int k = 0; k < 2; ++k) {
    if (spans.from[k] == spans.to[k]) continue;
    lines.first[k] = (block_header_bytes + spans.from[k]) / block_frame::line_bytes;
    const std::uint64_t last = (block_header_bytes + spans.to[k] - 1) / block_frame::line_bytes;
    lines.count[k] = static_cast<std::uint32_t>(last - lines.first[k]) + 1;
  }
  return lines;
}

// A line with zeros outside of [from, to), which are bytes of the frame.
__device__ inline uint4 cut_line(uint4 words, std::uint64_t line, std::uint64_t from,
                                 std::uint64_t to) {
  const std::uint64_t start = line * block_frame::line_bytes;
  if (start >= from && start + block_frame::line_bytes <= to) return words;
  std::uint32_t parts[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (unsigned k = 0; k < 4; ++k)
#pragma unroll
    for (unsigned b = 0; b < 4; ++b) {
      const std::uint64_t at = start + 4 * k + b;
      if (at < from || at >= to) parts[k] &= ~(0xffu << 8 * b);
    }
  return {parts[0], parts[1], parts[2], parts[3]};
}

// The lines of one span of `ranks` frames, added to each other with their shifts, as a checksum up
// to the last line's shift. For one warp; the result is in every lane.
__device__ inline std::uint32_t shifted_sum(const uint4 (*stage)[stage_lines], std::uint32_t first,
                                            std::uint32_t lines, std::uint32_t ranks,
                                            const std::uint32_t* entries) {
  const std::uint32_t positions = lines + block_frame::shifted_ranks - 1;
  const std::uint32_t each = (positions + warp - 1) / warp, lane = threadIdx.x % warp;
  const std::uint32_t from = min(positions, lane * each), to = min(positions, from + each);
  std::uint32_t crc = 0;
  for (std::uint32_t p = from; p < to; ++p) {
    uint4 sum{};
    for (std::uint32_t r = 0; r < ranks; ++r) {
      if (p < r || p - r >= lines) continue;
      const uint4 line = stage[r][first + p - r];
      sum = {sum.x ^ line.x, sum.y ^ line.y, sum.z ^ line.z, sum.w ^ line.w};
    }
    for (const std::uint32_t word : {sum.x, sum.y, sum.z, sum.w}) {
      crc ^= word;
#pragma unroll
      for (int k = 0; k < 4; ++k) crc = crc >> 8 ^ entries[crc & 0xffu];
    }
  }
  crc = crc32c_times(crc, block_frame::weights.at[positions - to]);
  return __reduce_xor_sync(~0u, crc);
}

template <typename E, typename Rule>
__global__ void __launch_bounds__(block_threads)
    average_tiles(const BlockPayloads in, const Rule rule, std::uint32_t tile, float share,
                  const std::uint32_t* tile_weights, typename E::Stored* average) {
  __shared__ uint4 stage[block_frame::shifted_ranks][stage_lines];
  __shared__ std::uint32_t entries[256];
  const Verdict verdict = *in.verdict;
  if (in.check->suspect != 0) return;
  if (verdict.void_step() || verdict.unsound != 0) {
    // Nobody needs the average, but the frames are checked all the same.
    if (thread_index() == 0) in.check->suspect = 1;
    return;
  }
  entries[threadIdx.x] = crc32c_entry(threadIdx.x);
  std::uint32_t worst = ~0u;
  for (std::uint64_t k = blockIdx.x; k * tile < rule.elements; k += gridDim.x) {
    const auto first = static_cast<std::uint32_t>(k * tile);
    const std::uint32_t count = min(tile, rule.elements - first);
    const Spans spans = rule.spans(first, count);
    const TileLines lines = lines_of(spans);
    const std::uint32_t all = lines.count[0] + lines.count[1];
    const std::uint32_t mine = first + 8 * threadIdx.x;
    const std::uint32_t elements = 8 * threadIdx.x < count ? min(8u, count - 8 * threadIdx.x) : 0;
    float sum[8] = {};
    for (std::uint32_t base = 0; base < in.ranks; base += block_frame::shifted_ranks) {
      const std::uint32_t ranks = min(block_frame::shifted_ranks, in.ranks - base);
      for (std::uint32_t i = threadIdx.x; i < ranks * all; i += block_threads) {
        const std::uint32_t rank = i / all, at = i - rank * all;
        const int span = at < lines.count[0] ? 0 : 1;
        const std::uint64_t line = lines.first[span] + (span == 0 ? at : at - lines.count[0]);
        const auto* const frame =
            reinterpret_cast<const uint4*>(in.slots + (base + rank) * in.slot_bytes);
        stage[rank][at] = cut_line(frame[line], line, block_header_bytes + spans.from[span],
                                   block_header_bytes + spans.to[span]);
      }
      __syncthreads();
      if (threadIdx.x / warp == k % (block_threads / warp)) {
        for (int span = 0; span < 2; ++span) {
          if (lines.count[span] == 0) continue;
          const std::uint32_t crc =
              shifted_sum(stage, span == 0 ? 0 : lines.count[0], lines.count[span], ranks, entries);
          if (threadIdx.x % warp == 0)
            atomicXor(&in.check->found, crc32c_times(crc, tile_weights[2 * k + span]));
        }
      }
#pragma unroll
      for (std::uint32_t part = 0; part < 8; part += Rule::step) {
        if (part >= elements) continue;
        const std::uint32_t some = min(Rule::step, elements - part);
        const auto place = rule.place(mine + part, some);
#pragma unroll 2
        for (std::uint32_t rank = 0; rank < ranks; ++rank) {
          // The payload begins before what is staged of it.
          const auto at = [&](int span, std::uint32_t skip) {
            return Staged{reinterpret_cast<const std::uint8_t*>(stage[rank] + skip),
                          block_frame::line_bytes * lines.first[span] - block_header_bytes};
          };
          if (!rule.add(at(0, 0), at(1, lines.count[0]), place, some, share, sum + part))
            worst = min(worst, base + rank);
        }
      }
      __syncthreads();
    }
    if (elements > 0) store_average<E, 8>(sum, mine, elements, average, in.verdict);
  }
  if (worst != ~0u) in.opened[worst].bad_value = in.check->bad_value = 1;
  if (block_frame::is_last_block(&in.check->done) && threadIdx.x == 0 &&
      __ldcg(&in.check->found) != in.check->expected)
    in.check->suspect = 1;
}

// Takes a void step back, as CodedCompressor::undo() and forget() do.
template <typename E, typename Rule>
__global__ void __launch_bounds__(block_threads)
    conclude_kernel(const Feed<E> feed, const Rule rule, const std::uint8_t* payload,
                    typename E::Stored* gradient, std::size_t count, float fill,
                    const Verdict* verdict) {
  if (!verdict->void_step()) return;
  const bool forget = verdict->unsound != 0;
  for (std::size_t k = thread_index(); k < count; k += thread_count()) {
    const auto i = static_cast<std::uint32_t>(k);
    if (feed.v != nullptr) {
      const float sent = 0.0f + rule.value(payload, i);  // a decoder adds to zeros: never -0
      feed.v[i] = forget ? taken_out(Accumulate::residual, feed.again(i), sent, 0, feed.v[i])
                         : feed.v[i] + sent;
    }
    if (feed.u != nullptr && forget) feed.u[i] = 0;
    gradient[i] = E::narrow(fill);
  }
}

// An array of kernels' constants, copied to the device once.
template <typename T>
Buffer uploaded(const std::vector<T>& values, Device device) {
  Buffer buffer(Place::cuda, values.size() * sizeof(T), device);
  copy_bytes(buffer.data(), values.data(), buffer.size(), {});
  synchronize({});
  return buffer;
}

template <typename Kernel>
void allow_shared_memory(Kernel kernel, std::size_t bytes) {
  if (bytes <= 48 * 1024) return;  // more than every kernel has without asking
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error != cudaSuccess) fail("cuda: shared memory: ", cudaGetErrorString(error));
}

template <typename Rule>
void average_with(const Rule& rule, const BlockPayloads& in, float share, const TensorView& average,
                  Stream stream, const char* name) {
  if (average.count == 0) return;
  with_element(average.dtype, name, [&](auto element) {
    using E = decltype(element);
    const std::size_t pieces = (average.count + Rule::step - 1) / Rule::step;
    average_kernel<E, Rule><<<blocks_for(pieces), block_threads, 0, handle_of(stream)>>>(
        in, rule, share, static_cast<typename E::Stored*>(average.data));
  });
  check_launch(name);
}

template <typename Rule>
void conclude_with(const Rule& rule, const CodedStep& step, float fill, const char* name) {
  if (step.gradient.count == 0) return;
  with_element(step.gradient.dtype, name, [&](auto element) {
    using E = decltype(element);
    // Usually it has nothing to do.
    const unsigned blocks = std::min(1024u, blocks_for(step.gradient.count));
    conclude_kernel<E, Rule><<<blocks, block_threads, 0, handle_of(step.stream)>>>(
        feed_of<E>(step), rule, step.payload, static_cast<typename E::Stored*>(step.gradient.data),
        step.gradient.count, fill, step.verdict);
  });
  check_launch(name);
}

// The codec of a rule with groups of a fixed size.
template <typename Rule>
class GroupCodec final : public CudaCodec {
 public:
  GroupCodec(const char* name, const Rule& rule, std::size_t payload_bytes, Device device)
      : name_(name), rule_(rule), bytes_(payload_bytes) {
    if (rule.elements == 0 || rule.group > tile_most) return;
    tile_ = tile_most / rule.group * rule.group;
    // What the lines behind each span of a tile do to a checksum.
    const Crc32cPowers powers = crc32c_powers();
    const std::uint64_t last = (block_header_bytes + bytes_ - 1) / block_frame::line_bytes;
    std::vector<std::uint32_t> weights;
    for (std::uint64_t first = 0; first < rule.elements; first += tile_) {
      const auto from = static_cast<std::uint32_t>(first);
      const TileLines lines = lines_of(rule.spans(from, std::min(tile_, rule.elements - from)));
      if (lines.count[0] + lines.count[1] > stage_lines)
        fail(name, ": a tile has more lines than its stage; this is a bug of the scheme");
      for (int span = 0; span < 2; ++span) {
        const std::uint64_t end = lines.first[span] + lines.count[span];
        weights.push_back(
            crc32c_shift(0x80000000u, block_frame::line_bytes * (last + 1 - end), powers));
      }
    }
    weights_ = uploaded(weights, device);
  }

  BlockRule payload_rule() const override { return {bytes_, true, Code::truncated}; }
  bool checks_frames() const override { return tile_ > 0; }

  void encode(const CodedStep& step) override {
    if (step.gradient.count == 0) return;
    with_element(step.gradient.dtype, name_, [&](auto element) {
      using E = decltype(element);
      if (rule_.group <= warp_group) {
        launch<E, warp>(step);
      } else {
        launch<E, wide>(step);
      }
    });
    check_launch(name_);
  }

  void average(const BlockPayloads& payloads, float share, TensorView average,
               Stream stream) override {
    if (!checks_frames()) return average_with(rule_, payloads, share, average, stream, name_);
    with_element(average.dtype, name_, [&](auto element) {
      using E = decltype(element);
      average_tiles<E, Rule>
          <<<blocks_for(rule_.elements, tile_), block_threads, 0, handle_of(stream)>>>(
              payloads, rule_, tile_, share, weights_.as<std::uint32_t>(),
              static_cast<typename E::Stored*>(average.data));
    });
    check_launch(name_);
  }

  void conclude(const CodedStep& step, float fill) override {
    conclude_with(rule_, step, fill, name_);
  }

 private:
  template <typename E, unsigned size>
  void launch(const CodedStep& step) const {
    constexpr unsigned teams = block_size<size> / size;
    const std::size_t groups = (rule_.elements + rule_.group - 1) / rule_.group;
    const std::size_t shared = teams * rule_.room_bytes();
    const auto kernel = encode_kernel<E, size, Rule>;
    allow_shared_memory(kernel, shared);
    kernel<<<blocks_for(groups, teams), block_size<size>, shared, handle_of(step.stream)>>>(
        feed_of<E>(step), rule_, step.key, step.payload, step.frame, step.verdict);
  }

  const char* name_;
  Rule rule_;
  std::size_t bytes_;
  std::uint32_t tile_ = 0;  // elements; 0: groups too long for tiles
  Buffer weights_;          // of the tiles' checksums
};

}  // namespace thinwire::coded
