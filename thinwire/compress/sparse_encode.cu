// sparse_encode.cu: a frame from the survivors of a bucket, one block per chunk. First each block
// collects its survivors and chooses their code; the last one to end lays the frame out. Then each
// writes its body, and the last one the checksum.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "thinwire/compress/sparse_frame.cuh"
#include "thinwire/core/tile.h"
#include "thinwire/wire/elias_fano.h"
#include "thinwire/wire/gap_rule.h"
#include "thinwire/wire/golomb_rule.h"
#include "thinwire/wire/value_rule.h"

namespace thinwire {
namespace {

using namespace sparse_frame;

constexpr std::uint32_t tiles_near = 1024;

struct EncodeArguments {
  Layout layout;
  IndexChoice choice;
  DgcDevice memory;
  const std::uint32_t* tile_at;
  ChunkPlan* plans;
  std::byte* scratch;     // for the gap coder
  std::uint32_t* used;    // of it
  std::uint64_t* length;  // of the frame
  std::uint32_t* crc;     // of the bodies
  std::uint32_t* words;   // the frame
  std::uint64_t room;     // words of it
  std::uint64_t* written;
};

// The last block of the grid to come here returns true; it sees what all others have written.
__device__ bool is_last_block(std::uint32_t* done) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(done, 1) == gridDim.x - 1;
    if (last) *done = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

// The tiles of the block's chunk, and how many survivors are before each. They are looked up in
// shared memory, unless there are too many of them.
struct ChunkTiles {
  std::uint32_t low, high;
  bool small;
  std::uint32_t before[tiles_near];
};

// Finds room for the chunk's survivors in `ordered`, and the place of each tile's in it.
__device__ void place(const EncodeArguments& a, ChunkTiles& tiles, ChunkPlan& plan) {
  const DgcDevice& on = a.memory;
  __shared__ std::uint32_t first;
  std::uint32_t count = 0;
  for (std::uint32_t base = tiles.low; base < tiles.high; base += threads) {
    const std::uint32_t tile = base + threadIdx.x;
    const std::uint32_t mine = tile < tiles.high ? on.table[tile].count : 0;
    std::uint32_t all = 0;
    const std::uint32_t before = count + block_before(mine, all);
    if (tile < tiles.high) {
      if (tiles.small) tiles.before[tile - tiles.low] = before;
      on.offset[tile] = before;
    }
    count += all;
  }
  if (threadIdx.x == 0) first = atomicAdd(&on.counters->placed, count);
  __syncthreads();
  plan.first = first;
  plan.count = count;
}

// Copies the survivors of the block's chunk from the pool to `ordered`, by index.
__device__ void collect(const EncodeArguments& a, ChunkPlan& plan) {
  __shared__ ChunkTiles tiles;
  const DgcDevice& on = a.memory;
  const std::uint64_t start = std::uint64_t{blockIdx.x} << a.layout.chunk_log2;
  const std::uint64_t end = start + chunk_extent(a.layout, blockIdx.x);
  const std::uint32_t low = a.tile_at[start >> tile_log2];
  const std::uint32_t high = a.tile_at[(end + tile_elements - 1) >> tile_log2];
  if (threadIdx.x == 0) {
    tiles.low = low;
    tiles.high = high;
    tiles.small = high - low <= tiles_near;
  }
  __syncthreads();
  place(a, tiles, plan);
  const bool small = tiles.small;
  const auto offset = [&](std::uint32_t tile) {
    return small ? tiles.before[tile - low] : on.offset[tile];
  };
  const bool unsound = on.counters->unsound != 0;
  for (std::uint32_t i = threadIdx.x; i < plan.count; i += threads) {
    const std::uint32_t place = plan.first + i;
    std::uint32_t from = low, to = high;  // the tile: the last with at most i survivors before it
    while (to - from > 1) {
      const std::uint32_t middle = from + (to - from) / 2;
      if (offset(middle) <= i) {
        from = middle;
      } else {
        to = middle;
      }
    }
    const std::uint32_t source = on.table[from].first + (i - offset(from));
    const std::uint32_t index = on.pool.index[source];
    const float value = on.pool.value[source];
    const float velocity = on.u == nullptr ? 0.0f : on.pool.velocity[source];
    on.ordered.index[place] = index;
    on.ordered.value[place] = value;
    if (on.u != nullptr) on.ordered.velocity[place] = velocity;
    if (unsound) {  // nothing is sent: back at once
      if (on.v != nullptr) on.v[index] = value;
      if (on.u != nullptr) on.u[index] = velocity;
    }
  }
  __syncthreads();
  for (std::uint32_t tile = low + threadIdx.x; tile < high; tile += threads)
    on.offset[tile] += plan.first;
}

// Survivor i of a chunk, and its gap to the one before.
struct Gaps {
  const std::uint32_t* index;
  std::uint32_t start;  // element where the chunk starts

  __device__ std::uint32_t operator()(std::uint32_t i) const {
    return i == 0 ? index[0] - start : index[i] - index[i - 1] - 1;
  }
};

__device__ GolombPlan plan_golomb(const Gaps& gaps, std::uint32_t count, std::uint32_t extent) {
  const auto cost = [&](std::uint8_t parameter, std::uint64_t stride) -> std::uint64_t {
    const Golomb golomb(golomb_divisor(parameter));
    // All quotients together are at most the extent, so 32 bits are enough.
    std::uint32_t bits = 0;
    const auto step = static_cast<std::uint32_t>(stride);
    const std::uint32_t looked = (count - 1) / step + 1;
    for (std::uint32_t k = threadIdx.x; k < looked; k += threads)
      bits += static_cast<std::uint32_t>(golomb.extra_bits(gaps(k * step)));
    return std::uint64_t{block_sum(bits)} + std::uint64_t{looked} * (1 + golomb.low);
  };
  return GolombSearch(count, extent, cost).run();
}

// What the values' header of the chunk says.
__device__ std::uint32_t plan_values(ValueCoder coder, const float* values, std::uint32_t count) {
  using namespace value_rule;
  if (coder != ValueCoder::log8 && coder != ValueCoder::log4 && coder != ValueCoder::sign) return 0;
  std::uint32_t lo = ~0u, hi = 0;
  for (std::uint32_t i = threadIdx.x; i < count; i += threads) {
    const std::uint32_t magnitude = magnitude_of(values[i]);
    lo = min(lo, magnitude);
    hi = max(hi, magnitude);
  }
  hi = block_combine(hi, [](std::uint32_t x, std::uint32_t y) { return x > y ? x : y; });
  if (coder != ValueCoder::sign) {
    lo = block_combine(lo, [](std::uint32_t x, std::uint32_t y) { return x < y ? x : y; });
    return lo >> 16 | hi >> 16 << 16;
  }
  const std::uint32_t top = exponent_of(hi);
  std::uint64_t sum = 0;
  for (std::uint32_t i = threadIdx.x; i < count; i += threads)
    sum += sign_term(magnitude_of(values[i]), top);
  return sign_mean(block_sum(sum), count, top);
}

// Apart, because its model would take registers from everything else.
__device__ __noinline__ std::uint32_t encode_gap(const Gaps& gaps, std::uint32_t count,
                                                 std::uint32_t extent, Bytes out) {
  return static_cast<std::uint32_t>(gap_rule::encode({gaps.index, count}, gaps.start, extent, out));
}

// As index_encode(): the smallest by plan, or the gap coder where it is smaller still.
__device__ void plan_indices(const EncodeArguments& a, const Gaps& gaps, std::uint32_t extent,
                             ChunkPlan& plan) {
  plan.index_bytes = ~0u;
  if (a.choice == IndexChoice::elias_fano || a.choice == IndexChoice::smallest) {
    const EliasFanoPlan elias_fano =
        elias_fano_plan(plan.count, gaps.index[plan.count - 1] - gaps.start);
    plan.coder = static_cast<std::uint8_t>(IndexCoder::elias_fano);
    plan.parameter = elias_fano.low;
    plan.index_bytes = static_cast<std::uint32_t>(elias_fano.bytes);
  }
  if (a.choice != IndexChoice::elias_fano) {
    const GolombPlan golomb = plan_golomb(gaps, plan.count, extent);
    const auto bytes = static_cast<std::uint32_t>((golomb.bits + 7) / 8);
    if (bytes <= plan.index_bytes) {
      plan.coder = static_cast<std::uint8_t>(IndexCoder::golomb);
      plan.parameter = golomb.parameter;
      plan.index_bytes = bytes;
    }
  }
  if (a.choice != IndexChoice::gap && a.choice != IndexChoice::smallest) return;
  __shared__ std::uint32_t bytes, at;
  if (threadIdx.x == 0) {  // one thread: each bit depends on those before
    at = atomicAdd(a.used, plan.index_bytes);
    bytes = encode_gap(gaps, plan.count, extent, {a.scratch + at, plan.index_bytes - 1});
  }
  __syncthreads();
  if (bytes != 0) {
    plan.coder = static_cast<std::uint8_t>(IndexCoder::gap);
    plan.parameter = 0;
    plan.index_bytes = bytes;
    plan.written = at;
  }
}

__device__ std::uint32_t varint_size(std::uint64_t value) {
  std::uint32_t size = 1;
  for (; value >= 0x80; value >>= 7) ++size;
  return size;
}

__device__ void put_varint(std::uint32_t* words, std::uint64_t& byte, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) or_bits(words, 8 * byte++, (value & 0x7f) | 0x80, 8);
  or_bits(words, 8 * byte++, value, 8);
}

// The last block: the directory, and where each body starts.
__device__ void lay_out(const EncodeArguments& a) {
  if (a.memory.counters->unsound != 0) {
    if (threadIdx.x == 0) *a.length = frame_header_bytes;
    return;
  }
  const auto entry = [&](const ChunkPlan& plan) -> std::uint64_t {
    if (plan.count == 0) return 1;
    return varint_size(std::uint64_t{plan.count} << 2 | plan.coder) + 1 +
           varint_size(plan.index_bytes);
  };
  const auto body = [&](const ChunkPlan& plan) -> std::uint64_t {
    return plan.count == 0 ? 0 : plan.index_bytes + value_rule::bytes(a.layout.values, plan.count);
  };
  std::uint64_t entries = 0;
  for (std::uint32_t c = threadIdx.x; c < a.layout.chunks; c += threads)
    entries += entry(a.plans[c]);
  std::uint64_t next_entry = frame_header_bytes;
  std::uint64_t next_body = frame_header_bytes + block_sum(entries);
  for (std::uint32_t base = 0; base < a.layout.chunks; base += threads) {
    const std::uint32_t c = base + threadIdx.x;
    const bool valid = c < a.layout.chunks;
    const ChunkPlan plan = valid ? a.plans[c] : ChunkPlan{};
    std::uint64_t all_entries = 0, all_bodies = 0;
    std::uint64_t at = next_entry + block_before(valid ? entry(plan) : 0, all_entries);
    const std::uint64_t body_at = next_body + block_before(valid ? body(plan) : 0, all_bodies);
    if (valid) a.plans[c].body = body_at;
    if (valid && plan.count != 0) {
      put_varint(a.words, at, std::uint64_t{plan.count} << 2 | plan.coder);
      or_bits(a.words, 8 * at++, plan.parameter, 8);
      put_varint(a.words, at, plan.index_bytes);
    }
    next_entry += all_entries;
    next_body += all_bodies;
  }
  if (threadIdx.x == 0) *a.length = next_body;
}

__global__ void __launch_bounds__(threads) plan_chunks(const EncodeArguments a) {
  // The whole slot becomes zero: bits are set into it, and a stale tail would go over the wire.
  const std::uint64_t step = std::uint64_t{gridDim.x} * threads;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * threads + threadIdx.x; i < a.room; i += step)
    a.words[i] = 0;
  if (a.layout.chunks > 0) {
    ChunkPlan plan;
    collect(a, plan);
    if (plan.count > 0 && a.memory.counters->unsound == 0) {
      const auto start =
          static_cast<std::uint32_t>(std::uint64_t{blockIdx.x} << a.layout.chunk_log2);
      const Gaps gaps{a.memory.ordered.index + plan.first, start};
      plan_indices(a, gaps, chunk_extent(a.layout, blockIdx.x), plan);
      plan.value_header =
          plan_values(a.layout.values, a.memory.ordered.value + plan.first, plan.count);
    }
    if (threadIdx.x == 0) a.plans[blockIdx.x] = plan;
  }
  if (is_last_block(&a.memory.counters->done)) lay_out(a);
}

__device__ void write_golomb(const ChunkPlan& plan, const Gaps& gaps, std::uint32_t* words) {
  const Golomb golomb(golomb_divisor(plan.parameter));
  std::uint64_t position = 8 * plan.body;
  for (std::uint32_t base = 0; base < plan.count; base += threads) {
    const std::uint32_t i = base + threadIdx.x;
    Golomb::Codeword word{0, 0, 0};
    std::uint64_t bits = 0;
    if (i < plan.count) {
      word = golomb.codeword(gaps(i));
      bits = word.zeros + 1 + word.tail_bits;
    }
    std::uint64_t all = 0;
    const std::uint64_t at = position + block_before(bits, all);
    if (bits != 0) or_bits(words, at + word.zeros, word.tail << 1 | 1, 1 + word.tail_bits);
    position += all;
  }
}

__device__ void write_elias_fano(const ChunkPlan& plan, const Gaps& gaps, std::uint32_t* words) {
  const unsigned low = plan.parameter;
  const std::uint64_t bitmap = 8 * (plan.body + elias_fano_low_bytes(plan.count, low));
  for (std::uint32_t i = threadIdx.x; i < plan.count; i += threads) {
    const std::uint64_t index = gaps.index[i] - gaps.start;
    or_bits(words, 8 * plan.body + std::uint64_t{i} * low, index & ((std::uint64_t{1} << low) - 1),
            low);
    or_bits(words, bitmap + (index >> low) + i, 1, 1);
  }
}

// The code of one value, and what receivers decode.
__device__ std::uint32_t value_code(ValueCoder coder, std::uint32_t header,
                                    const value_rule::LogScale& scale, float value,
                                    float& decoded) {
  using namespace value_rule;
  switch (coder) {
    case ValueCoder::f32:
      decoded = value;
      return bits_of(value);
    case ValueCoder::f16: {
      const std::uint32_t code = half_code<F16>(value);
      decoded = F16::to(static_cast<std::uint16_t>(code));
      return code;
    }
    case ValueCoder::bf16: {
      const std::uint32_t code = half_code<Bf16>(value);
      decoded = Bf16::to(static_cast<std::uint16_t>(code));
      return code;
    }
    case ValueCoder::log8:
    case ValueCoder::log4: {
      const std::uint32_t code = scale.code(value);
      decoded = scale.value(code);
      return code;
    }
    case ValueCoder::sign:
      break;
  }
  const std::uint32_t sign = bits_of(value) & sign_bit;
  decoded = float_of(sign | header << 16);
  return sign >> 31;
}

__device__ void write_values(const EncodeArguments& a, const ChunkPlan& plan) {
  const DgcDevice& on = a.memory;
  const ValueCoder coder = a.layout.values;
  const std::uint64_t start = 8 * (plan.body + plan.index_bytes);
  const auto header_bits = static_cast<unsigned>(8 * value_rule::header_bytes(coder));
  if (threadIdx.x == 0 && header_bits > 0) or_bits(a.words, start, plan.value_header, header_bits);
  const auto bits = static_cast<unsigned>(value_rule::code_bits(coder));
  const bool levels = coder == ValueCoder::log8 || coder == ValueCoder::log4;
  const value_rule::LogScale scale(levels ? plan.value_header & 0xffffu : 0,
                                   levels ? plan.value_header >> 16 : 0,
                                   coder == ValueCoder::log8 ? 7 : 3);
  for (std::uint32_t i = threadIdx.x; i < plan.count; i += threads) {
    const float value = on.ordered.value[plan.first + i];
    float decoded = 0;
    const std::uint32_t code = value_code(coder, plan.value_header, scale, value, decoded);
    or_bits(a.words, start + header_bits + std::uint64_t{i} * bits, code, bits);
    if (on.v != nullptr) on.v[on.ordered.index[plan.first + i]] = value - decoded;
  }
}

// The last block: header and checksum, and the counters of the next step.
__device__ void seal(const EncodeArguments& a, const CrcTable& table) {
  const std::uint64_t length = *a.length;
  const bool skipped = a.memory.counters->unsound != 0;
  std::uint32_t header[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) header[i] = a.layout.header.words[i];
  if (skipped) header[1] |= 1u;  // byte 4
  const std::uint64_t bodies = skipped || a.layout.chunks == 0 ? length : a.plans[0].body;
  const std::uint32_t directory =
      piece_checksum(table, a.words, frame_header_bytes, bodies, length);
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a.words[i] = header[i];
    a.words[crc_offset / 4] = header_checksum(table, header, length) ^ directory ^ *a.crc;
    *a.written = length;
    *a.crc = 0;
    *a.used = 0;
    a.memory.counters->pooled = 0;
    a.memory.counters->reserved = 0;
    a.memory.counters->unsound = 0;
    a.memory.counters->placed = 0;
  }
  for (std::uint32_t s = threadIdx.x; s < a.memory.segment_count; s += threads)
    a.memory.segments[s].passed = 0;
}

__device__ void write_indices(const EncodeArguments& a, const ChunkPlan& plan) {
  const auto start = static_cast<std::uint32_t>(std::uint64_t{blockIdx.x} << a.layout.chunk_log2);
  const Gaps gaps{a.memory.ordered.index + plan.first, start};
  switch (static_cast<IndexCoder>(plan.coder)) {
    case IndexCoder::golomb:
      return write_golomb(plan, gaps, a.words);
    case IndexCoder::elias_fano:
      return write_elias_fano(plan, gaps, a.words);
    case IndexCoder::gap:
      break;
  }
  for (std::uint32_t i = threadIdx.x; i < plan.index_bytes; i += threads)
    or_bits(a.words, 8 * (plan.body + i), static_cast<std::uint32_t>(a.scratch[plan.written + i]),
            8);
}

__global__ void __launch_bounds__(threads) write_chunks(const EncodeArguments a) {
  __shared__ CrcTable table;
  table.make();
  if (a.layout.chunks > 0 && a.memory.counters->unsound == 0) {
    const ChunkPlan plan = a.plans[blockIdx.x];
    if (plan.count > 0) {
      write_indices(a, plan);
      write_values(a, plan);
      __threadfence();
      __syncthreads();
      const std::uint64_t end =
          plan.body + plan.index_bytes + value_rule::bytes(a.layout.values, plan.count);
      const std::uint32_t crc = piece_checksum(table, a.words, plan.body, end, *a.length);
      if (threadIdx.x == 0) atomicXor(a.crc, crc);
    }
  }
  if (is_last_block(&a.memory.counters->done)) seal(a, table);
}

}  // namespace

void SparseFrameCuda::prepare(const FrameHeader& header, std::size_t survivors, std::size_t bound,
                              int ranks, Device device, Stream stream) {
  const std::size_t chunks = frame_chunks(header);
  if (chunks <= chunks_ && survivors <= survivors_ && bound <= bound_ && ranks <= ranks_) return;
  tiles_ = (std::size_t{header.elements} + tile_elements - 1) >> tile_log2;
  synchronize(stream);  // work on the old memory may still run
  chunks_ = std::max(chunks, chunks_);
  survivors_ = std::max(survivors, survivors_);
  bound_ = std::max(bound, bound_);
  ranks_ = std::max(ranks, ranks_);
  const auto room = [device](std::size_t bytes) { return Buffer(Place::cuda, bytes, device); };
  const auto frames = static_cast<std::size_t>(ranks_);
  plans_ = room(chunks_ * sizeof(ChunkPlan));
  scratch_ = room(bound_);
  state_ = room(2 * sizeof(std::uint64_t));
  entries_ = room(frames * chunks_ * sizeof(ChunkEntry));
  opened_ = room(frames * sizeof(OpenedFrame) + sizeof(std::uint32_t));
  tile_first_ = room(frames * (tiles_ + 1) * sizeof(std::uint32_t));
  indices_ = room(frames * survivors_ * sizeof(std::uint32_t));
  values_ = room(frames * survivors_ * sizeof(float));
}

void SparseFrameCuda::encode(const FrameHeader& header, IndexChoice choice, const DgcDevice& memory,
                             const std::uint32_t* tile_at, Bytes out, std::uint64_t* written,
                             Stream stream) const {
  EncodeArguments a{};
  a.layout = layout_of(header);
  a.choice = choice;
  a.memory = memory;
  a.tile_at = tile_at;
  a.plans = plans_.as<ChunkPlan>();
  a.scratch = scratch_.data();
  a.length = state_.as<std::uint64_t>();
  a.used = reinterpret_cast<std::uint32_t*>(state_.as<std::uint64_t>() + 1);
  a.crc = a.used + 1;
  a.words = reinterpret_cast<std::uint32_t*>(out.data());
  a.room = out.size() / sizeof(std::uint32_t);
  a.written = written;
  const unsigned blocks = std::max(1u, a.layout.chunks);
  plan_chunks<<<blocks, threads, 0, handle_of(stream)>>>(a);
  check_launch("plan_chunks");
  write_chunks<<<blocks, threads, 0, handle_of(stream)>>>(a);
  check_launch("write_chunks");
}

}  // namespace thinwire
