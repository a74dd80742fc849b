// qsgd.cu: random levels of each bucket's norm in device memory, in the packed form.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/coded.cuh"
#include "thinwire/kernels/qsgd.h"

namespace thinwire {
namespace {

using namespace coded;

struct QsgdDevice {
  QsgdRule rule;
  std::uint32_t elements, group;

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

  __host__ __device__ Spans spans(std::uint32_t first, std::uint32_t count) const {
    const std::uint64_t from = bucket_at(first / group), rest = count % group;
    return {
        {from, 0},
        {bucket_at((first + count) / group) + (rest == 0 ? 0 : qsgd_bucket_bytes(rule, rest)), 0}};
  }

  template <typename Payload>
  __device__ bool add(const Payload& payload, const Payload&, const Place& place,
                      std::uint32_t count, float share, float* sum) const {
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
                      static_cast<std::uint32_t>(rule.bucket)};
  return std::make_unique<GroupCodec<QsgdDevice>>("qsgd", on, qsgd_bytes(rule, elements), device);
}

}  // namespace thinwire
