// sign.cu: signs and levels in device memory. A warp or a block holds a group in shared memory;
// groups too long for that are scanned in parts and settled in a second pass.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "thinwire/compress/coded_decode.cuh"
#include "thinwire/compress/coded_encode.cuh"

namespace thinwire {
namespace {

using namespace coded;

constexpr std::uint32_t wide_group = 16384;    // longest group that a block holds
constexpr std::uint32_t scan_part = 1u << 16;  // as in sign.cc: sums of parts are added in order
constexpr std::uint32_t piece_elements = 512;  // a warp averages that many
constexpr std::uint32_t no_group = ~0u;

struct GroupPlace {
  std::uint32_t first, count;
  std::uint32_t levels, bits;  // offsets in the payload
};

// A part of a group.
struct PartPlace {
  std::uint32_t first, count;
  std::uint32_t levels, bits;
  std::uint32_t group;  // scan: among the long groups; average: among those of several pieces, or
                        // no_group
};

struct LongGroup {
  std::uint32_t first_part, parts;
  std::uint32_t count, levels;
};

struct PartSums {
  double high, low;
  std::uint64_t lows;
};

struct LongLevels {
  SignPair levels;
  std::uint32_t finite;
};

// The sums of one group's sides by a team, in the order of sign.h. Blocks of 128 elements go to 16
// threads each; their sums in float are added in double by one warp, block after block.
template <unsigned size>
class SideSums {
 public:
  __device__ explicit SideSums(float* parts) : parts_(parts) {}  // 2 * size floats, shared

  // The next `count` elements; only the last call has other than multiples of 128.
  __device__ void add(const float* x, std::uint32_t count) {
    const unsigned thread = team_thread<size>();
    for (std::uint32_t base = 0; base < count; base += 8 * size) {
      const std::uint32_t start = base + 128 * (thread / 16) + thread % 16;
      float high = 0, low = 0;
#pragma unroll
      for (unsigned j = 0; j < 8; ++j) {
        const std::uint32_t i = start + 16 * j;
        if (i >= count) continue;
        if (x[i] < 0) {
          low += x[i];
          ++lows_;
        } else {
          high += x[i];
        }
      }
      parts_[thread] = high;
      parts_[size + thread] = low;
      team_sync<size>();
      if (thread < warp) {
        const float* const mine = parts_ + thread / 16 * size + thread % 16;
        for (unsigned block = 0; block < size / 16; ++block)
          sum_ += static_cast<double>(mine[16 * block]);
      }
      team_sync<size>();
    }
  }

  // The sums, in every thread. x_at(i) is x of element i, for the way in double.
  template <typename X>
  __device__ SignSums total(std::uint32_t count, const X& x_at) {
    const unsigned thread = team_thread<size>();
    double high = 0, low = 0;
    if (thread < warp) {
      double sum = tree(sum_);
      high = __shfl_sync(~0u, sum, 0);
      low = __shfl_sync(~0u, sum, 16);
      if (!isfinite(high) || !isfinite(low)) {
        high = low = 0;
        for (std::uint32_t i = thread % 16; i < count; i += 16) {
          const float x = x_at(i);
          (x < 0 ? low : high) += static_cast<double>(x);
        }
        high = tree(high);
        low = tree(low);
      }
    }
    high = team_first<size>(high);
    low = team_first<size>(low);
    const std::uint32_t lows =
        team_combine<size>(lows_, [](std::uint32_t a, std::uint32_t b) { return a + b; });
    return {high, low, lows};
  }

 private:
  // Over the sixteen lanes of a half of the warp.
  __device__ static double tree(double sum) {
    for (unsigned half = 8; half > 0; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
    return sum;
  }

  float* parts_;
  double sum_ = 0;  // in the first warp: sum `thread % 16` of side `thread / 16`
  std::uint32_t lows_ = 0;
};

__device__ bool finite(const SignSums& sums) { return isfinite(sums.high) && isfinite(sums.low); }

struct SignOut {
  SignLevels kind;
  std::uint8_t* payload;

  __device__ void put(std::uint32_t at, const SignPair& levels) const {
    auto* const to = reinterpret_cast<float*>(payload + at);
    to[0] = levels.high;
    if (kind == SignLevels::two_means) to[1] = levels.low;
  }
};

// The bits of x < 0, for a team.
template <unsigned size>
__device__ void write_bits(const float* x, std::uint32_t count, bool none, std::uint8_t* bits) {
  const std::uint32_t bytes = (count + 7) / 8;
  for (std::uint32_t base = 0; base < count; base += size) {
    const std::uint32_t i = base + team_thread<size>();
    const std::uint32_t word = __ballot_sync(~0u, i < count && !none && x[i] < 0);
    const std::uint32_t row = (i - i % warp) / 8;
    if (row < bytes) write_row(word, bits + row, bytes - row);
  }
}

template <typename E, unsigned size>
__global__ void __launch_bounds__(block_size<size>)
    encode_groups(const Feed<E> feed, const SignOut out, const GroupPlace* groups,
                  std::uint32_t count, std::uint32_t longest, FrameState* frame, Verdict* verdict) {
  extern __shared__ float4 shared[];
  constexpr unsigned teams = block_size<size> / size;
  const unsigned team = threadIdx.x / size, thread = team_thread<size>();
  float* const parts = reinterpret_cast<float*>(shared) + team * (longest + 2 * size);
  float* const x = parts + 2 * size;
  for (std::uint32_t k = blockIdx.x * teams + team; k < count; k += gridDim.x * teams) {
    const GroupPlace group = groups[k];
    take_in<size>(feed, group.first, group.count, x);
    team_sync<size>();
    SideSums<size> sides(parts);
    sides.add(x, group.count);
    const SignSums sums = sides.total(group.count, [&](std::uint32_t i) { return x[i]; });
    const bool sound = finite(sums);
    const SignPair levels = sound ? sign_levels(out.kind, sums, group.count) : SignPair{};
    if (thread == 0) out.put(group.levels, levels);
    write_bits<size>(x, group.count, levels.low == 0, out.payload + group.bits);
    if (!sound) {
      keep_refused<size>(feed, group.first, group.count);
      report_unsound(frame, verdict);
    } else if (feed.v != nullptr) {
      for (std::uint32_t i = thread; i < group.count; i += size)
        feed.v[group.first + i] = x[i] - (x[i] < 0 ? levels.low : levels.high);
    }
    team_sync<size>();
  }
}

// A block per part of a long group: its bits and sums.
template <typename E>
__global__ void __launch_bounds__(wide)
    scan_parts(const Feed<E> feed, std::uint8_t* payload, const PartPlace* parts, PartSums* sums) {
  constexpr std::uint32_t chunk = 8 * wide;
  __shared__ float scratch[2 * wide], x[chunk];
  const PartPlace part = parts[blockIdx.x];
  SideSums<wide> sides(scratch);
  for (std::uint32_t at = 0; at < part.count; at += chunk) {
    const std::uint32_t count = min(chunk, part.count - at);
    take_in<wide>(feed, part.first + at, count, x);
    __syncthreads();
    sides.add(x, count);
    write_bits<wide>(x, count, false, payload + part.bits + at / 8);
    __syncthreads();
  }
  const SignSums found =
      sides.total(part.count, [&](std::uint32_t i) { return feed.x_again(part.first + i); });
  if (threadIdx.x == 0) sums[blockIdx.x] = {found.high, found.low, found.lows};
}

// A thread per long group: its levels.
__global__ void level_groups(const SignOut out, const LongGroup* groups, std::uint32_t count,
                             const PartSums* sums, LongLevels* levels, FrameState* frame,
                             Verdict* verdict) {
  for (std::size_t k = thread_index(); k < count; k += thread_count()) {
    const LongGroup group = groups[k];
    SignSums all;
    for (std::uint32_t p = group.first_part; p < group.first_part + group.parts; ++p)
      all = {all.high + sums[p].high, all.low + sums[p].low, all.lows + sums[p].lows};
    const bool sound = finite(all);
    const SignPair pair = sound ? sign_levels(out.kind, all, group.count) : SignPair{};
    levels[k] = {pair, sound ? 1u : 0u};
    out.put(group.levels, pair);
    if (!sound) report_unsound(frame, verdict);
  }
}

// A block per part again: the rest. Bits without a meaning become zero.
template <typename E>
__global__ void __launch_bounds__(wide)
    settle_parts(const Feed<E> feed, std::uint8_t* payload, const PartPlace* parts,
                 const LongLevels* levels) {
  const PartPlace part = parts[blockIdx.x];
  const LongLevels found = levels[part.group];
  if (found.levels.low == 0) {
    for (std::uint32_t b = threadIdx.x; b < (part.count + 7) / 8; b += wide)
      payload[part.bits + b] = 0;
  }
  if (found.finite == 0) return keep_refused<wide>(feed, part.first, part.count);
  if (feed.v == nullptr) return;
  constexpr unsigned batch = 8;  // loads under way at once
  for (std::uint32_t base = threadIdx.x; base < part.count; base += batch * wide) {
    float x[batch];
#pragma unroll
    for (unsigned k = 0; k < batch; ++k) {
      const std::uint32_t i = base + k * wide;
      x[k] = i < part.count ? feed.again(part.first + i) + feed.v[part.first + i] : 0;
    }
#pragma unroll
    for (unsigned k = 0; k < batch; ++k) {
      const std::uint32_t i = base + k * wide;
      if (i < part.count)
        feed.v[part.first + i] = x[k] - (x[k] < 0 ? found.levels.low : found.levels.high);
    }
  }
}

// A payload with a value that no encoder writes.
__device__ void blame(const BlockPayloads& in, std::uint32_t rank) {
  if (in.check == nullptr) return block_frame::accuse(in.verdict, Code::bad_value, rank, in.bucket);
  in.opened[rank].bad_value = in.check->bad_value = 1;
}

// What the bits of a group have: some zeros, some ones.
constexpr std::uint32_t has_ones = 1, has_zeros = 2;

__device__ SignPair levels_at(SignLevels kind, const std::uint8_t* payload, std::uint32_t at) {
  const auto* const from = reinterpret_cast<const float*>(payload + at);
  return {from[0], kind == SignLevels::two_means ? from[1] : -from[0]};
}

// Bit k of lane i becomes bit i of lane k.
__device__ std::uint32_t transposed(std::uint32_t word) {
  const unsigned lane = threadIdx.x % warp;
  std::uint32_t columns = 0x0000ffffu;  // those without bit `step`
#pragma unroll
  for (unsigned step = 16; step > 0; step /= 2, columns ^= columns << step) {
    const std::uint32_t other = __shfl_xor_sync(~0u, word, step);
    word = (lane & step) == 0 ? (word & columns) | (other & columns) << step
                              : (word & ~columns) | (other >> step & columns);
  }
  return word;
}

// For up to eight ranks. Half a warp decodes a piece, a word of 32 elements per lane and rank.
// There are only 256 sums of eight levels, one for each byte of the ranks' bits: they come from a
// table.
inline constexpr unsigned table_ranks = 8, half_warp = warp / 2;
inline constexpr unsigned block_pieces = block_threads / half_warp;

// Eight words as columns of bits: byte j of word k gets bit 8 j + k of each word.
__device__ void turn_bits(std::uint32_t (&word)[8]) {
  const auto swap = [&](unsigned a, unsigned b, unsigned by, std::uint32_t mask) {
    const std::uint32_t other = (word[a] >> by ^ word[b]) & mask;
    word[b] ^= other;
    word[a] ^= other << by;
  };
#pragma unroll
  for (unsigned k = 0; k < 4; ++k) swap(k, k + 4, 4, 0x0f0f0f0fu);
#pragma unroll
  for (unsigned k = 0; k < 8; ++k)
    if ((k & 2) == 0) swap(k, k + 2, 2, 0x33333333u);
#pragma unroll
  for (unsigned k = 0; k < 8; k += 2) swap(k, k + 1, 1, 0x55555555u);
}

// Bytes of four words as rows: word k gets byte k of each.
__device__ uint4 turn_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  const std::uint32_t ab = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
  const std::uint32_t cd = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
  return {__byte_perm(ab, cd, 0x5410), __byte_perm(ab, cd, 0x7632),
          __byte_perm(ab_high, cd_high, 0x5410), __byte_perm(ab_high, cd_high, 0x7632)};
}

// In shared memory, for each half warp.
struct alignas(16) PieceRoom {
  float sum[256];                    // by the ranks' bits
  std::uint32_t row[8 * half_warp];  // the bits of four elements
};

template <typename E>
__global__ void __launch_bounds__(block_threads, 4)
    average_by_table(const BlockPayloads in, const block_frame::SumPlan plan, SignLevels kind,
                     const PartPlace* pieces, std::uint32_t count, std::uint32_t several,
                     std::uint32_t* sides_seen, float share, typename E::Stored* average) {
  using Type = typename E::Stored;
  __shared__ block_frame::SumTables tables;
  __shared__ PieceRoom rooms[block_pieces];
  block_frame::LineSums sums(tables, plan);
  await_previous();
  if (!block_frame::may_average(in)) return;
  const block_frame::AllFrames frames{in, plan.payload};
  const unsigned lane = threadIdx.x % half_warp;
  const std::uint32_t others = threadIdx.x % warp < half_warp ? 0x0000ffffu : 0xffff0000u;
  PieceRoom& room = rooms[threadIdx.x / half_warp];
  bool bad = false;  // the payload of rank `lane`
  std::uint32_t tile = blockIdx.x;
  for (; tile < plan.tiles; tile += gridDim.x) {
    sums.add(frames, tile);
    const std::uint32_t k = tile * block_pieces + threadIdx.x / half_warp;
    const bool some = k < count;
    const PartPlace piece = some ? pieces[k] : PartPlace{};
    const std::uint32_t bytes = (piece.count + 7) / 8;
    const std::uint32_t here = 4 * lane < bytes ? min(4u, bytes - 4 * lane) : 0;
    const std::uint32_t left = piece.count > 32 * lane ? piece.count - 32 * lane : 0;
    const std::uint32_t valid = left >= 32 ? ~0u : (1u << left) - 1;
    const bool has_rank = lane < in.ranks;
    SignPair levels;
    if (some && has_rank) levels = levels_at(kind, block_frame::payload_of(in, lane), piece.levels);
    std::uint32_t word[table_ranks] = {};
#pragma unroll
    for (std::uint32_t rank = 0; rank < table_ranks; ++rank)
      if (rank < in.ranks && here > 0)
        word[rank] = static_cast<std::uint32_t>(
            load_bytes(block_frame::payload_of(in, rank) + piece.bits + 4 * lane, here));
    std::uint32_t ones = 0, zeros = 0, padding = 0;  // of rank `lane`
#pragma unroll
    for (std::uint32_t rank = 0; rank < table_ranks; ++rank) {
      const std::uint32_t found[3] = {__ballot_sync(~0u, word[rank] != 0),
                                      __ballot_sync(~0u, (~word[rank] & valid) != 0),
                                      __ballot_sync(~0u, (word[rank] & ~valid) != 0)};
      if (lane != rank) continue;
      ones = found[0] & others;
      zeros = found[1] & others;
      padding = found[2] & others;
    }
    if (some && has_rank) {
      bad = bad || padding != 0;
      if (piece.group == no_group) {
        bad = bad || !sign_levels_fit(kind, levels, ones != 0, zeros != 0);
      } else {
        std::uint32_t* const seen = &sides_seen[std::size_t{lane} * several + piece.group];
        const std::uint32_t sides = (ones != 0 ? has_ones : 0) | (zeros != 0 ? has_zeros : 0);
        if ((__ldcg(seen) & sides) != sides) atomicOr(seen, sides);
      }
    }
    // Sums in rank order: the bits of four ranks are the lane's number, those of the others
    // follow.
    float sum[half_warp] = {};
#pragma unroll
    for (std::uint32_t rank = 0; rank < table_ranks; ++rank) {
      const float high = share * __shfl_sync(~0u, levels.high, rank, half_warp);
      const float low = share * __shfl_sync(~0u, levels.low, rank, half_warp);
      if (rank >= in.ranks) continue;
      if (rank < 4) sum[0] += (lane >> rank & 1u) != 0 ? low : high;
#pragma unroll
      for (unsigned j = 0; j < half_warp / 2; ++j) {
        if (rank < 4 || j >> (rank - 4) != 0) continue;
        sum[j + (1u << (rank - 4))] = sum[j] + low;
        sum[j] += high;
      }
    }
    turn_bits(word);
    __syncwarp();
#pragma unroll
    for (unsigned j = 0; j < half_warp; ++j) room.sum[half_warp * j + lane] = sum[j];
    const uint4 even = turn_bytes(word[0], word[1], word[2], word[3]);
    const uint4 odd = turn_bytes(word[4], word[5], word[6], word[7]);
    // Four elements each; words of a lane are in order.
    *reinterpret_cast<uint4*>(&room.row[8 * lane]) = {even.x, odd.x, even.y, odd.y};
    *reinterpret_cast<uint4*>(&room.row[8 * lane + 4]) = {even.z, odd.z, even.w, odd.w};
    __syncwarp();
    Type* const out = average + piece.first;
    const bool aligned = reinterpret_cast<std::uintptr_t>(out) % alignof(Four<Type>) == 0;
#pragma unroll
    for (unsigned j = 0; j < 8; ++j) {
      const unsigned four = half_warp * j + lane;
      if (4 * four >= piece.count) break;
      const std::uint32_t bits = room.row[four];
      const float values[4] = {room.sum[bits & 0xffu], room.sum[bits >> 8 & 0xffu],
                               room.sum[bits >> 16 & 0xffu], room.sum[bits >> 24]};
      if (aligned && 4 * four + 4 <= piece.count) {
        store_four_once(out, four, narrowed_four<E>(values, in.verdict));
      } else {
#pragma unroll
        for (unsigned i = 0; i < 4; ++i)
          if (4 * four + i < piece.count) out[4 * four + i] = narrowed<E>(values[i], in.verdict);
      }
    }
  }
  sums.finish(&in.check->found);
  if (bad) blame(in, lane);
  block_frame::compare_sums(in);
}

// For any number of ranks: a warp per piece, two ranks at a time. Lane k holds the bits of row k,
// 32 elements, of the first one, and lane 16 + k those of the second. Turned round, each lane has
// the bits of its own elements.
template <typename E>
__global__ void __launch_bounds__(block_threads)
    average_pieces(const BlockPayloads in, SignLevels kind, const PartPlace* pieces,
                   std::uint32_t count, std::uint32_t several, std::uint32_t* sides_seen,
                   float share, typename E::Stored* average) {
  constexpr unsigned rows = piece_elements / warp;
  static_assert(2 * rows == warp);
  const Verdict verdict = *in.verdict;
  if (verdict.void_step() || verdict.unsound != 0) return;
  const unsigned lane = threadIdx.x % warp, row_here = lane % rows;
  std::uint32_t worst = ~0u;
  for (std::size_t k = thread_index() / warp; k < count; k += thread_count() / warp) {
    const PartPlace piece = pieces[k];
    const std::uint32_t bytes = (piece.count + 7) / 8, mine = 4 * row_here;
    // The elements of this lane's row, as a mask.
    const std::uint32_t left = piece.count > 32 * row_here ? piece.count - 32 * row_here : 0;
    const std::uint32_t valid = left >= 32 ? ~0u : (1u << left) - 1;
    float sum[rows] = {};
#pragma unroll 2
    for (std::uint32_t rank = 0; rank < in.ranks; rank += 2) {
      const std::uint32_t own = rank + lane / rows, halves = min(2u, in.ranks - rank);
      std::uint32_t word = 0;
      if (own < in.ranks && mine < bytes)
        word = static_cast<std::uint32_t>(load_bytes(
            block_frame::payload_of(in, own) + piece.bits + mine, min(4u, bytes - mine)));
      const std::uint32_t ones = __ballot_sync(~0u, word != 0);
      const std::uint32_t zeros = __ballot_sync(~0u, (~word & valid) != 0);
      const std::uint32_t padding = __ballot_sync(~0u, (word & ~valid) != 0);
      word = transposed(word);
      for (std::uint32_t half = 0; half < halves; ++half) {
        const std::uint32_t lanes = 0xffffu << rows * half;
        const SignPair levels =
            levels_at(kind, block_frame::payload_of(in, rank + half), piece.levels);
        bool sound = (padding & lanes) == 0;
        if (piece.group == no_group) {
          sound = sound && sign_levels_fit(kind, levels, (ones & lanes) != 0, (zeros & lanes) != 0);
        } else if (lane == 0) {
          atomicOr(&sides_seen[std::size_t{rank + half} * several + piece.group],
                   ((ones & lanes) != 0 ? has_ones : 0) | ((zeros & lanes) != 0 ? has_zeros : 0));
        }
        if (!sound) worst = min(worst, rank + half);
        const float high = share * levels.high, low = share * levels.low;
        const std::uint32_t bits = word >> rows * half;
#pragma unroll
        for (unsigned row = 0; row < rows; ++row) sum[row] += (bits >> row & 1u) != 0 ? low : high;
      }
    }
#pragma unroll
    for (unsigned row = 0; row < rows; ++row)
      if (32 * row + lane < piece.count)
        average[piece.first + 32 * row + lane] = narrowed<E>(sum[row], in.verdict);
  }
  if (worst != ~0u) blame(in, worst);
}

// A thread per rank and group of several pieces: whether its levels fit its bits.
__global__ void judge_groups(const BlockPayloads in, SignLevels kind, const GroupPlace* groups,
                             std::uint32_t several, std::uint32_t* sides_seen) {
  for (std::size_t k = thread_index(); k < std::size_t{several} * in.ranks; k += thread_count()) {
    const auto rank = static_cast<std::uint32_t>(k / several);
    const std::uint32_t seen = sides_seen[k];
    if (seen == 0) continue;  // nobody has looked: the step is void
    sides_seen[k] = 0;
    const SignPair levels =
        levels_at(kind, block_frame::payload_of(in, rank), groups[k % several].levels);
    if (!sign_levels_fit(kind, levels, (seen & has_ones) != 0, (seen & has_zeros) != 0))
      blame(in, rank);
  }
}

// For conclude_kernel(): one decoded element. The group is searched for: void steps are rare.
struct SignDevice {
  SignLevels kind;
  const GroupPlace* groups;
  std::uint32_t count;

  __device__ float value(const std::uint8_t* payload, std::uint32_t i) const {
    std::uint32_t from = 0, to = count;  // the last group that starts at or before i
    while (to - from > 1) {
      const std::uint32_t middle = from + (to - from) / 2;
      if (groups[middle].first <= i) {
        from = middle;
      } else {
        to = middle;
      }
    }
    const GroupPlace group = groups[from];
    const SignPair levels = levels_at(kind, payload, group.levels);
    const std::uint32_t at = i - group.first;
    return (payload[group.bits + at / 8] >> at % 8 & 1) != 0 ? levels.low : levels.high;
  }
};

template <typename T>
std::uint32_t count_of(const Buffer& buffer) {
  return static_cast<std::uint32_t>(buffer.size() / sizeof(T));
}

class SignCodecCuda final : public CudaCodec {
 public:
  SignCodecCuda(SignLevels kind, const std::vector<SignGroup>& groups, int ranks, Device device)
      : kind_(kind), bytes_(SignCodec::payload_bytes(kind, groups)) {
    std::vector<GroupPlace> all, small, middle, several;
    std::vector<PartPlace> parts, pieces;
    std::vector<LongGroup> longs;
    const std::size_t each = kind == SignLevels::two_means ? 8 : 4;
    std::size_t bits = groups.size() * each;
    for (const SignGroup& group : groups) {
      const GroupPlace place{
          static_cast<std::uint32_t>(group.first), static_cast<std::uint32_t>(group.count),
          static_cast<std::uint32_t>(all.size() * each), static_cast<std::uint32_t>(bits)};
      all.push_back(place);
      bits += (group.count + 7) / 8;
      if (place.count <= warp_group) {
        small.push_back(place);
        longest_small_ = std::max(longest_small_, place.count);
      } else if (place.count <= wide_group) {
        middle.push_back(place);
        longest_middle_ = std::max(longest_middle_, place.count);
      } else {
        const auto first_part = static_cast<std::uint32_t>(parts.size());
        cut(place, scan_part, static_cast<std::uint32_t>(longs.size()), parts);
        longs.push_back({first_part, static_cast<std::uint32_t>(parts.size()) - first_part,
                         place.count, place.levels});
      }
      const bool one = place.count <= piece_elements;
      cut(place, piece_elements, one ? no_group : static_cast<std::uint32_t>(several.size()),
          pieces);
      if (!one) several.push_back(place);
    }
    all_ = uploaded(all, device);
    small_ = uploaded(small, device);
    middle_ = uploaded(middle, device);
    several_ = uploaded(several, device);
    parts_ = uploaded(parts, device);
    pieces_ = uploaded(pieces, device);
    longs_ = uploaded(longs, device);
    part_sums_ = Buffer(Place::cuda, parts.size() * sizeof(PartSums), device);
    levels_ = Buffer(Place::cuda, longs.size() * sizeof(LongLevels), device);
    sides_ =
        Buffer(Place::cuda,
               several.size() * static_cast<std::size_t>(ranks) * sizeof(std::uint32_t), device);
    if (pieces.empty() || ranks > static_cast<int>(table_ranks)) return;
    const auto tiles =
        static_cast<std::uint32_t>((pieces.size() + block_pieces - 1) / block_pieces);
    block_frame::LineSection lines = block_frame::whole_section(bytes_, 0);
    lines.each = (lines.end - lines.first + tiles - 1) / tiles;
    sums_ = block_frame::FrameSums(bytes_, {lines}, tiles, resident_blocks(4, device), device);
  }

  const block_frame::FrameSums* sums() const override { return sums_.empty() ? nullptr : &sums_; }
  BlockRule payload_rule() const override { return {bytes_, true, Code::mismatch}; }

  void encode(const CodedStep& step) override {
    with_element(step.gradient.dtype, "signs", [&](auto element) {
      using E = decltype(element);
      encode_held<E, warp>(step, small_, longest_small_);
      encode_held<E, wide>(step, middle_, longest_middle_);
      encode_long<E>(step);
    });
  }

  void average(const BlockPayloads& payloads, float share, TensorView average,
               Stream stream) override {
    const std::uint32_t pieces = count_of<PartPlace>(pieces_);
    const std::uint32_t several = count_of<GroupPlace>(several_);
    if (pieces == 0) return;
    with_element(average.dtype, "signs", [&](auto element) {
      using E = decltype(element);
      auto* const to = static_cast<typename E::Stored*>(average.data);
      if (!sums_.empty()) {
        prefer_cache(average_by_table<E>,
                     sizeof(block_frame::SumTables) + block_pieces * sizeof(PieceRoom), 4);
        launch_early(average_by_table<E>, sums_.blocks(), block_threads, stream, payloads,
                     sums_.plan(), kind_, pieces_.as<PartPlace>(), pieces, several,
                     sides_.as<std::uint32_t>(), share, to);
      } else {
        const unsigned blocks = blocks_for(std::size_t{pieces} * warp);
        average_pieces<E><<<blocks, block_threads, 0, handle_of(stream)>>>(
            payloads, kind_, pieces_.as<PartPlace>(), pieces, several, sides_.as<std::uint32_t>(),
            share, to);
      }
    });
    check_launch("average of signs");
    if (several == 0) return;
    judge_groups<<<blocks_for(std::size_t{several} * payloads.ranks), block_threads, 0,
                   handle_of(stream)>>>(payloads, kind_, several_.as<GroupPlace>(), several,
                                        sides_.as<std::uint32_t>());
    check_launch("levels of signs");
  }

  void conclude(const CodedStep& step, float fill) override {
    const SignDevice device{kind_, all_.as<GroupPlace>(), count_of<GroupPlace>(all_)};
    conclude_with(device, step, fill, "signs");
  }

 private:
  static void cut(const GroupPlace& place, std::uint32_t longest, std::uint32_t group,
                  std::vector<PartPlace>& out) {
    for (std::uint64_t at = 0; at < place.count; at += longest) {
      const auto from = static_cast<std::uint32_t>(at);
      out.push_back({place.first + from, std::min(longest, place.count - from), place.levels,
                     place.bits + from / 8, group});
    }
  }

  template <typename E, unsigned size>
  void encode_held(const CodedStep& step, const Buffer& groups, std::uint32_t longest) const {
    const std::uint32_t count = count_of<GroupPlace>(groups);
    if (count == 0) return;
    constexpr unsigned teams = block_size<size> / size;
    const std::uint32_t room = (longest + 3) / 4 * 4;
    const std::size_t shared = teams * (room + 2 * size) * sizeof(float);
    const auto kernel = encode_groups<E, size>;
    allow_shared_memory(kernel, shared);
    kernel<<<blocks_for(count, teams), block_size<size>, shared, handle_of(step.stream)>>>(
        feed_of<E>(step), SignOut{kind_, step.payload}, groups.as<GroupPlace>(), count, room,
        step.frame, step.verdict);
    check_launch("signs");
  }

  template <typename E>
  void encode_long(const CodedStep& step) const {
    const std::uint32_t parts = count_of<PartPlace>(parts_), longs = count_of<LongGroup>(longs_);
    if (parts == 0) return;
    const cudaStream_t on = handle_of(step.stream);
    const Feed<E> feed = feed_of<E>(step);
    scan_parts<E><<<parts, wide, 0, on>>>(feed, step.payload, parts_.as<PartPlace>(),
                                          part_sums_.as<PartSums>());
    check_launch("scan of signs");
    level_groups<<<blocks_for(longs), block_threads, 0, on>>>(
        SignOut{kind_, step.payload}, longs_.as<LongGroup>(), longs, part_sums_.as<PartSums>(),
        levels_.as<LongLevels>(), step.frame, step.verdict);
    check_launch("levels of signs");
    settle_parts<E><<<parts, wide, 0, on>>>(feed, step.payload, parts_.as<PartPlace>(),
                                            levels_.as<LongLevels>());
    check_launch("rest of signs");
  }

  SignLevels kind_;
  std::size_t bytes_;
  std::uint32_t longest_small_ = 0, longest_middle_ = 0;  // groups that a warp and a block hold
  Buffer all_, small_, middle_, several_, parts_, pieces_, longs_, part_sums_, levels_, sides_;
  block_frame::FrameSums sums_;
};

}  // namespace

std::unique_ptr<CudaCodec> sign_codec_cuda(SignLevels levels, const std::vector<SignGroup>& groups,
                                           int ranks, Device device) {
  return std::make_unique<SignCodecCuda>(levels, groups, ranks, device);
}

}  // namespace thinwire
