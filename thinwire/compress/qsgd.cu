// qsgd.cu: random levels of each bucket's norm in device memory, in the packed form.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/group_codec.cuh"
#include "thinwire/kernels/qsgd.h"

namespace thinwire {
namespace {

using namespace coded;

struct QsgdDevice {
  QsgdRule rule;
  std::uint32_t elements, group;
  float inverse_top;  // 1 / (2^bits - 1)

  // x of a bucket, then a byte per level.
  __host__ __device__ std::size_t room_bytes() const {
    return group * (sizeof(float) + sizeof(std::uint8_t));
  }

  __host__ __device__ std::uint64_t bucket_at(std::uint32_t bucket) const {
    return std::uint64_t{bucket} * (4 + group / 8 * (1 + rule.bits));
  }

  // One warp adds, in the order of the reference: element i to sum i % 32, then a tree. Where that
  // leaves the safe range, in double: element i to sum i % 16.
  template <unsigned size>
  __device__ double l2_norm(const float* x, std::uint32_t count) const {
    double norm = 0;
    if (team_thread<size>() < warp) {
      float sum = 0;
      for (std::uint32_t i = team_thread<size>(); i < count; i += warp) sum += x[i] * x[i];
      for (unsigned half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
      if (qsgd_sum_is_sound(sum)) {
        norm = sqrtf(sum);
      } else {
        double squares = 0;
        for (std::uint32_t i = team_thread<size>() % 16; i < count; i += 16) {
          const double value = x[i];
          squares += value * value;
        }
        for (unsigned half = 8; half > 0; half /= 2) squares += __shfl_xor_sync(~0u, squares, half);
        norm = sqrt(squares);
      }
    }
    return team_first<size>(norm);
  }

  template <unsigned size>
  __device__ double largest(const float* x, std::uint32_t count) const {
    std::uint32_t most = 0;  // as bits: what is not finite is larger than all numbers
    for (std::uint32_t i = team_thread<size>(); i < count; i += size)
      most = max(most, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
    most = team_combine<size>(most, [](std::uint32_t a, std::uint32_t b) { return a > b ? a : b; });
    return std::bit_cast<float>(most < 0x7f800000u ? most : 0x7f800000u);
  }

  template <unsigned size>
  __device__ QsgdScale measure(const float* x, std::uint32_t count) const {
    return qsgd_scale(rule, rule.largest ? largest<size>(x, count) : l2_norm<size>(x, count));
  }

  template <unsigned size>
  __device__ bool write(float* x, std::uint32_t first, std::uint32_t count, const QsgdScale& scale,
                        DrawKey key, std::uint8_t* payload, float* v) const {
    const unsigned thread = team_thread<size>();
    auto* const levels = reinterpret_cast<std::uint8_t*>(x + group);
    std::uint8_t* const at = payload + bucket_at(first / group);
    const auto sign_bytes = static_cast<std::uint32_t>(level_bytes(count, 1));
    if (thread == 0) *reinterpret_cast<float*>(at) = scale.norm;
    for (std::uint32_t base = 0; base < count; base += size) {
      const std::uint32_t i = base + thread;
      bool negative = false;
      if (i < count) {
        const float value = x[i];
        negative = scale.norm > 0 && std::bit_cast<std::uint32_t>(value) >> 31 != 0;
        const std::uint8_t level =
            qsgd_level(rule, fabsf(value), scale.inverse, draw_at(key, first + i));
        levels[i] = level;
        const float sent = static_cast<float>(level) * scale.unit;
        if (v != nullptr) v[i] = value - (negative ? -sent : sent);
      }
      const std::uint32_t word = __ballot_sync(~0u, negative);
      const std::uint32_t row = (i - i % warp) / 8;
      if (row < sign_bytes) write_row(word, at + 4 + row, sign_bytes - row);
    }
    team_sync<size>();
    pack<size>(levels, count, at + 4 + sign_bytes);
    return true;
  }

  // Each byte of the stream from the levels that have bits in it.
  template <unsigned size>
  __device__ void pack(const std::uint8_t* levels, std::uint32_t count, std::uint8_t* out) const {
    const int bits = static_cast<int>(rule.bits);
    const auto bytes = static_cast<std::uint32_t>(level_bytes(count, rule.bits));
    for (std::uint32_t b = team_thread<size>(); b < bytes; b += size) {
      std::uint32_t i = 8 * b / rule.bits, byte = 0;
      for (int place = static_cast<int>(i * rule.bits) - static_cast<int>(8 * b);
           place < 8 && i < count; place += bits, ++i) {
        const std::uint32_t level = levels[i];
        byte |= place < 0 ? level >> -place : level << place;
      }
      out[b] = static_cast<std::uint8_t>(byte);
    }
  }

  template <unsigned size>
  __device__ void refuse(std::uint32_t first, std::uint32_t count, std::uint8_t* payload) const {
    std::uint8_t* const at = payload + bucket_at(first / group);
    const auto bytes = static_cast<std::uint32_t>(qsgd_bucket_bytes(rule, count));
    for (std::uint32_t i = team_thread<size>(); i < bytes; i += size) at[i] = 0;
  }

  static constexpr unsigned rows = 16;
  struct Room {
    alignas(16) std::uint8_t level[warp * rows];
    std::uint16_t packed[warp * rows / 2];
  };

  // The sums of l2_norm(): element i to sum i % 32, then a tree.
  __device__ double l2_norm_rows(const float* x) const {
    float sum = 0;
#pragma unroll
    for (unsigned j = 0; j < rows; ++j) sum += x[j] * x[j];
    for (unsigned half = 16; half > 0; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
    if (qsgd_sum_is_sound(sum)) return sqrtf(sum);
    const unsigned lane = threadIdx.x % warp;
    double squares = 0;
#pragma unroll
    for (unsigned j = 0; j < rows; ++j)
      for (unsigned upper = 0; upper < 2; ++upper) {
        const double value = __shfl_sync(~0u, x[j], lane % 16 + 16 * upper);
        squares += value * value;
      }
    for (unsigned half = 8; half > 0; half /= 2) squares += __shfl_xor_sync(~0u, squares, half);
    return sqrt(squares);
  }

  __device__ QsgdScale measure_rows(const float* x) const {
    if (!rule.largest) return qsgd_scale(rule, l2_norm_rows(x));
    std::uint32_t most = 0;  // as bits: what is not finite is larger than all numbers
#pragma unroll
    for (unsigned j = 0; j < rows; ++j)
      most = max(most, std::bit_cast<std::uint32_t>(x[j]) & 0x7fffffffu);
    most = min(__reduce_max_sync(~0u, most), 0x7f800000u);
    return qsgd_scale(rule, std::bit_cast<float>(most));
  }

  __device__ bool write_rows(const float* x, std::uint32_t first, const QsgdScale& scale,
                             DrawKey key, Room& room, std::uint8_t* payload, float* v) const {
    const unsigned lane = threadIdx.x % warp;
    std::uint8_t* const at = payload + bucket_at(first / group);
    std::uint32_t draw[rows], signs = 0;  // signs of row `lane`
    draw_rows<rows>(key, first, draw);
    if (lane == 0) *reinterpret_cast<float*>(at) = scale.norm;
    __syncwarp();
#pragma unroll
    for (unsigned j = 0; j < rows; ++j) {
      const std::uint8_t level = qsgd_level(rule, fabsf(x[j]), scale.inverse, draw[j]);
      room.level[warp * j + lane] = level;
      const bool negative = scale.norm > 0 && std::bit_cast<std::uint32_t>(x[j]) >> 31 != 0;
      const std::uint32_t word = __ballot_sync(~0u, negative);
      if (lane == j) signs = word;
      const float sent = static_cast<float>(level) * scale.unit;
      if (v != nullptr) v[warp * j + lane] = x[j] - (negative ? -sent : sent);
    }
    if (lane < rows) reinterpret_cast<std::uint32_t*>(at + 4)[lane] = signs;
    __syncwarp();
    pack_sixteen(room);
    __syncwarp();
    // `bits` words for each row.
    auto* const words = reinterpret_cast<std::uint32_t*>(at + 4 + warp * rows / 8);
    for (unsigned k = lane; k < rows * rule.bits; k += warp)
      words[k] = reinterpret_cast<const std::uint32_t*>(room.packed)[k];
    return true;
  }

  // The levels of 16 elements per lane become 2 * bits bytes.
  __device__ void pack_sixteen(Room& room) const {
    const unsigned lane = threadIdx.x % warp, bits = rule.bits;
    const uint4 bytes = reinterpret_cast<const uint4*>(room.level)[lane];
    // Four bytes become 4 * bits bits.
    const auto closed = [bits](std::uint32_t four) {
      const std::uint32_t low = 0x00ff00ffu;
      const std::uint32_t pairs = (four & low) | (four >> 8 & low) << bits;
      return (pairs & 0xffffu) | (pairs >> 16) << 2 * bits;
    };
    const unsigned half = 4 * bits;
    const std::uint64_t first = closed(bytes.x) | std::uint64_t{closed(bytes.y)} << half;
    const std::uint64_t second = closed(bytes.z) | std::uint64_t{closed(bytes.w)} << half;
    // Eight levels are `bits` bytes, so the second half starts at byte `bits`.
    std::uint16_t* const to = room.packed + bits * lane;
    const std::uint64_t low = bits < 8 ? first | second << 8 * bits : first;
    const std::uint64_t high = bits < 8 ? second >> (64 - 8 * bits) : second;
#pragma unroll
    for (unsigned k = 0; k < 8; ++k)
      if (k < bits) to[k] = static_cast<std::uint16_t>((k < 4 ? low : high) >> 16 * (k % 4));
  }

  static constexpr std::uint32_t step = 8;
  struct Place {
    std::uint64_t norm, signs, levels;
    bool starts;
  };

  __device__ Place place(std::uint32_t first, std::uint32_t) const {
    const std::uint32_t bucket = first / group, inside = first - bucket * group;
    const std::uint32_t size = min(group, elements - bucket * group);
    const std::uint64_t at = bucket_at(bucket);
    return {at, at + 4 + inside / 8, at + 4 + (size + 7) / 8 + inside / 8 * rule.bits, inside == 0};
  }

  std::vector<block_frame::LineSection> sections(std::uint32_t tile, std::uint64_t bytes) const {
    return {block_frame::whole_section(bytes, bucket_at(tile / group))};
  }

  __device__ bool add(const std::uint8_t* payload, const Place& place, std::uint32_t count,
                      float share, float* sum) const {
    const float norm = *reinterpret_cast<const float*>(payload + place.norm);
    const std::uint32_t signs = payload[place.signs], used = count * rule.bits;
    const std::uint64_t levels = load_bytes(payload + place.levels, (used + 7) / 8);
    bool sound = !place.starts || qsgd_norm_is_sound(norm);
    // Padding is zero, and a norm of 0 is followed by zeros only.
    if (count < step) sound = sound && signs >> count == 0 && levels >> used == 0;
    if (norm == 0) sound = sound && signs == 0 && levels == 0;
    const float unit = qsgd_scale(rule, norm).unit * share;
    const std::uint32_t mask = (1u << rule.bits) - 1;
#pragma unroll
    for (unsigned i = 0; i < step; ++i) {
      const auto level = static_cast<std::uint32_t>(levels >> i * rule.bits) & mask;
      const float value = static_cast<float>(level) * unit;
      sum[i] += (signs >> i & 1u) != 0 ? -value : value;
    }
    return sound;
  }

  // norm / (2^bits - 1), rounded once: a quotient by the rounded inverse, and its correction.
  __device__ float unit_of(float norm) const {
    const auto top = static_cast<float>((1u << rule.bits) - 1);
    const float near = norm * inverse_top;
    return __fmaf_rn(__fmaf_rn(-near, top, norm), inverse_top, near);
  }

  // In a whole bucket all planes start at words, and the levels of 16 elements at half words.
  __device__ bool add_sixteen(const std::uint8_t* payload, const Place& place, float share,
                              float* sum) const {
    const float norm = *reinterpret_cast<const float*>(payload + place.norm);
    const std::uint32_t signs = *reinterpret_cast<const std::uint16_t*>(payload + place.signs);
    const std::uint8_t* const at = payload + place.levels;
    const auto skew = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(at) & 2);
    const auto* const words = reinterpret_cast<const std::uint32_t*>(at - skew);
    const unsigned bits = rule.bits, spanned = (skew + 2 * bits + 3) / 4;
    std::uint32_t word[4];
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) word[k] = k < spanned ? words[k] : 0;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k)
      word[k] = __funnelshift_r(word[k], k < 3 ? word[k + 1] : 0, 8 * skew);
    // The levels of eight elements are 8 * bits bits.
    const bool wide_levels = bits >= 4;
    const unsigned over = 8 * bits - (wide_levels ? 32 : 0);
    const std::uint64_t first = word[0] | std::uint64_t{word[1]} << 32;
    const std::uint32_t low = wide_levels ? __funnelshift_rc(word[1], word[2], over)
                                          : __funnelshift_rc(word[0], word[1], over);
    const std::uint64_t second = low | std::uint64_t{__funnelshift_rc(word[2], word[3], over)}
                                           << 32;
    const bool known = norm >= qsgd_smallest_norm && norm <= qsgd_largest_norm;
    const float unit = known ? unit_of(norm) * share : 0;
    bool sound = !place.starts || qsgd_norm_is_sound(norm);
    // 2^23 + level in one instruction; the fused sum rounds level * unit once.
    constexpr float lift = 0x1p23f;
    const std::uint32_t mask = (1u << bits) - 1;
    std::uint32_t some = signs;
    const auto add_all = [&](const auto& product) {
#pragma unroll
      for (unsigned i = 0; i < lane_elements; ++i) {
        const std::uint64_t levels = i < 8 ? first : second;
        const std::uint32_t lifted = (static_cast<std::uint32_t>(levels >> i % 8 * bits) & mask) |
                                     std::bit_cast<std::uint32_t>(lift);
        const float size = product(__uint_as_float(lifted));
        sum[i] += __uint_as_float(__float_as_uint(size) ^ (signs << (31 - i) & 0x80000000u));
      }
    };
    if (norm == 0) {
#pragma unroll
      for (unsigned i = 0; i < lane_elements; ++i)
        some |= static_cast<std::uint32_t>((i < 8 ? first : second) >> i % 8 * bits) & mask;
    } else if (unit < 0x1p100f) {
      const float down = -lift * unit;
      add_all([&](float lifted) { return __fmaf_rn(lifted, unit, down); });
    } else {
      add_all([&](float lifted) { return (lifted - lift) * unit; });
    }
    // A norm of 0 is followed by zeros only.
    return sound && (norm != 0 || some == 0);
  }

  __device__ float value(const std::uint8_t* payload, std::uint32_t i) const {
    const std::uint32_t first = i / step * step, count = min(step, elements - first);
    const Place at = place(first, count);
    const float norm = *reinterpret_cast<const float*>(payload + at.norm);
    const std::uint64_t levels =
        load_bytes(payload + at.levels, (count * rule.bits + 7) / 8) >> (i - first) * rule.bits;
    const float sent =
        static_cast<float>(static_cast<std::uint32_t>(levels) & ((1u << rule.bits) - 1)) *
        qsgd_scale(rule, norm).unit;
    return (payload[at.signs] >> (i - first) & 1) != 0 ? -sent : sent;
  }
};

}  // namespace

std::unique_ptr<CudaCodec> qsgd_codec_cuda(const QsgdRule& rule, std::size_t elements,
                                           Device device) {
  const QsgdDevice on{rule, static_cast<std::uint32_t>(elements),
                      static_cast<std::uint32_t>(rule.bucket),
                      1.0f / static_cast<float>((1u << rule.bits) - 1)};
  return std::make_unique<GroupCodec<QsgdDevice>>("qsgd", on, qsgd_bytes(rule, elements), device);
}

}  // namespace thinwire
