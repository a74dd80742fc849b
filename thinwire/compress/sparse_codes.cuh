// sparse_codes.cuh: the codes of a chunk, read by the threads of a block. Bytes are hostile: a code
// that no encoder writes is an error, as on the CPU.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/compress/sparse_frame.cuh"
#include "thinwire/compress/word_reader.cuh"
#include "thinwire/wire/elias_fano.h"
#include "thinwire/wire/gap_rule.h"
#include "thinwire/wire/golomb_rule.h"
#include "thinwire/wire/value_rule.h"

namespace thinwire::sparse_frame {

// The same for bits in shared memory, with zeros of at least two words behind them.
class NearReader {
 public:
  static constexpr unsigned most = 57;

  __device__ NearReader(const std::uint32_t* words, std::uint32_t bits)
      : words_(words), bits_(bits) {}

  __device__ std::uint64_t peek() const {
    const std::uint32_t word = min(position_, bits_) >> 5;
    const unsigned shift = position_ & 31;
    const std::uint32_t a = words_[word], b = words_[word + 1], c = words_[word + 2];
    return std::uint64_t{__funnelshift_r(b, c, shift)} << 32 | __funnelshift_r(a, b, shift);
  }
  __device__ void skip(std::uint64_t count) { position_ += static_cast<std::uint32_t>(count); }
  __device__ void seek(std::uint64_t position) { position_ = static_cast<std::uint32_t>(position); }
  __device__ std::uint64_t position() const { return position_; }
  __device__ bool overrun() const { return position_ > bits_; }

 private:
  const std::uint32_t* words_;
  std::uint32_t bits_;
  std::uint32_t position_ = 0;
};

inline constexpr std::uint32_t near_words = 2048;

// Gaps of part of a chunk: how many, the sum of gap + 1, and where the next part starts.
struct Part {
  std::uint64_t end;
  std::uint32_t count;
  std::uint64_t sum;
};

// Reads gaps until a position behind `until`, or the end of the bits.
template <typename Reader>
__device__ inline Part read_part(Reader reader, const Golomb& golomb, std::uint32_t extent,
                                 std::uint64_t from, std::uint64_t until, std::uint64_t bits) {
  Part part{from, 0, 0};
  reader.seek(from);
  while (part.end < until) {
    std::uint64_t gap = 0;
    const Status status = golomb_read(reader, golomb, extent, gap);
    if (reader.overrun()) return {bits + 1, part.count, part.sum};
    if (!status.ok() || gap > extent) gap = extent;  // bad if it is ever asked for
    part.end = reader.position();
    part.sum += gap + 1;
    ++part.count;
  }
  return part;
}

// Every thread takes a part of the bits. It does not know where its first code word starts, so it
// guesses, and corrects itself when the thread before has found out. Code words fall into step
// quickly; in any case the n-th part is right after n turns.
template <typename Reader>
__device__ inline Code decode_golomb(const Reader& reader, std::uint64_t bits,
                                     const ChunkEntry& entry, std::uint32_t extent,
                                     std::uint32_t start, std::uint32_t* out) {
  __shared__ std::uint64_t starts[threads + 1];
  const std::uint64_t divisor = golomb_divisor(entry.parameter);
  if (divisor == 0) return Code::bad_value;
  const Golomb golomb(divisor);
  const std::uint64_t each = max(std::uint64_t{64}, (bits + threads - 1) / threads);
  const std::uint64_t until = min(bits, each * (threadIdx.x + 1));
  std::uint64_t from = min(bits, each * threadIdx.x);
  Part part = read_part(reader, golomb, extent, from, until, bits);
  for (;;) {
    starts[threadIdx.x + 1] = part.end;
    if (threadIdx.x == 0) starts[0] = 0;
    __syncthreads();
    const std::uint64_t now = starts[threadIdx.x];
    // Threads behind the end would hand its place on, one per turn.
    const bool moved = now != from && each * threadIdx.x < bits;
    if (!__syncthreads_or(moved)) break;
    if (moved) {
      from = now;
      part = read_part(reader, golomb, extent, from, until, bits);
    }
  }
  std::uint32_t all = 0;
  std::uint64_t total = 0;
  std::uint32_t rank = block_before(part.count, all);
  std::uint64_t next = block_before(part.sum, total);
  if (all < entry.count) return Code::truncated;
  Code code = Code::ok;
  Reader mine = reader;
  mine.seek(from);
  for (; rank < entry.count && mine.position() < until; ++rank) {
    std::uint64_t gap = 0;
    const Status status = golomb_read(mine, golomb, extent, gap);
    const std::uint64_t index = next + gap;
    if (!status.ok() || gap > extent || index >= extent) code = Code::bad_value;
    if (mine.overrun()) code = Code::truncated;
    if (code != Code::ok) break;
    out[rank] = start + static_cast<std::uint32_t>(index);
    next = index + 1;
    // Behind the last one only zeros to the end of a byte.
    if (rank == entry.count - 1 && ((mine.position() + 7) / 8 != bits / 8 || mine.peek() != 0))
      code = Code::bad_value;
  }
  return code;
}

__device__ inline Code decode_elias_fano(const WordReader& reader, std::uint64_t bits,
                                         const ChunkEntry& entry, std::uint32_t extent,
                                         std::uint32_t start, std::uint32_t* out) {
  const unsigned low = entry.parameter;
  if (low > most_low_bits) return Code::bad_value;
  const std::uint64_t split = 8 * elias_fano_low_bytes(entry.count, low);
  if (bits < split) return Code::truncated;
  const std::uint64_t bitmap = bits - split;
  // Every thread takes a part of the bitmap, in steps of 32 bits.
  const std::uint64_t each = (bitmap / threads + 32) / 32 * 32;
  const std::uint64_t from = min(bitmap, each * threadIdx.x), to = min(bitmap, from + each);
  WordReader highs = reader, lows = reader;
  const auto word_at = [&](std::uint64_t at) {
    highs.seek(split + at);
    const auto word = static_cast<std::uint32_t>(highs.peek());
    return to - at < 32 ? word & ((1u << (to - at)) - 1) : word;
  };
  std::uint32_t mine = 0, all = 0;
  for (std::uint64_t at = from; at < to; at += 32) mine += __popc(word_at(at));
  std::uint32_t rank = block_before(mine, all);
  if (all < entry.count) return Code::truncated;
  if (all > entry.count) return Code::bad_value;
  Code code = Code::ok;
  const std::uint64_t mask = (std::uint64_t{1} << low) - 1, last_high = (extent - 1) >> low;
  for (std::uint64_t at = from; at < to; at += 32) {
    for (std::uint32_t word = word_at(at); word != 0; word &= word - 1, ++rank) {
      const std::uint64_t position =
          at + static_cast<std::uint32_t>(__ffs(static_cast<int>(word))) - 1;
      const std::uint64_t high = position - rank;
      lows.seek(std::uint64_t{rank} * low);
      const std::uint64_t index = high << low | (lows.peek() & mask);
      if (high > last_high || index >= extent) {
        code = Code::bad_value;
        continue;
      }
      out[rank] = start + static_cast<std::uint32_t>(index);
      if (rank == entry.count - 1 && position / 8 + 1 != bitmap / 8) code = Code::bad_value;
    }
  }
  lows.seek(std::uint64_t{entry.count} * low);
  const std::uint64_t padding = split - std::uint64_t{entry.count} * low;
  if ((lows.peek() & ((std::uint64_t{1} << padding) - 1)) != 0) code = Code::bad_value;
  if (__syncthreads_or(code != Code::ok)) return Code::bad_value;
  for (std::uint32_t i = threadIdx.x + 1; i < entry.count; i += threads)
    if (out[i] <= out[i - 1]) code = Code::bad_value;
  return code;
}

__device__ inline Code decode_values(ValueCoder coder, const WordReader& reader, std::uint64_t bits,
                                     std::uint32_t count, float* out) {
  using namespace value_rule;
  WordReader mine = reader;
  std::uint32_t header = 0;
  if (const auto header_bits = 8 * header_bytes(coder); header_bits > 0)
    header = static_cast<std::uint32_t>(mine.peek() & ((std::uint64_t{1} << header_bits) - 1));
  const std::uint32_t lo = header & 0xffffu, hi = header >> 16;
  const bool levels = coder == ValueCoder::log8 || coder == ValueCoder::log4;
  if (levels && (lo > hi || hi > largest_bf16)) return Code::bad_value;
  if (coder == ValueCoder::sign && (header == 0 || header > largest_bf16)) return Code::bad_value;
  const std::uint64_t each = code_bits(coder), start = 8 * header_bytes(coder);
  const LogScale scale(levels ? lo : 0, levels ? hi : 0, coder == ValueCoder::log8 ? 7 : 3);
  Code code = Code::ok;
  for (std::uint32_t i = threadIdx.x; i < count; i += threads) {
    mine.seek(start + each * i);
    const auto word = static_cast<std::uint32_t>(mine.peek() & ((std::uint64_t{1} << each) - 1));
    float value = 0;
    switch (coder) {
      case ValueCoder::f32:
        value = float_of(word);
        if ((word & ~sign_bit) >= infinity) code = Code::bad_value;
        break;
      case ValueCoder::f16:
        value = F16::to(static_cast<std::uint16_t>(word));
        if ((word & 0x7fffu) > F16::largest) code = Code::bad_value;
        break;
      case ValueCoder::bf16:
        value = Bf16::to(static_cast<std::uint16_t>(word));
        if ((word & 0x7fffu) > Bf16::largest) code = Code::bad_value;
        break;
      case ValueCoder::log8:
      case ValueCoder::log4:
        value = scale.value(word);
        break;
      case ValueCoder::sign:
        value = float_of(word << 31 | header << 16);
        break;
    }
    out[i] = value;
  }
  mine.seek(start + each * count);
  if (mine.position() < bits && mine.peek() != 0) code = Code::bad_value;
  return code;
}

// Apart, because its model would take registers from everything else.
static __device__ __noinline__ Code decode_gap(const std::byte* bytes, const ChunkEntry& entry,
                                               std::uint32_t extent, std::uint32_t start,
                                               std::uint32_t* out) {
  const Status status =
      gap_rule::decode(entry.parameter, {bytes, entry.index_bytes}, extent, {out, entry.count});
  if (status.ok())
    for (std::uint32_t i = 0; i < entry.count; ++i) out[i] += start;
  return status.code;
}

// Copies bits to shared memory, and zeros behind them.
__device__ inline void stage(WordReader reader, std::uint32_t bits, std::uint32_t* near) {
  for (std::uint32_t i = threadIdx.x; i < bits / 32 + 4; i += threads) {
    reader.seek(std::uint64_t{i} * 32);
    near[i] = static_cast<std::uint32_t>(reader.peek());
  }
  __syncthreads();
}

}  // namespace thinwire::sparse_frame
