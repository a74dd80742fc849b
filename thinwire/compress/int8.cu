// int8.cu: blocks of bytes in device memory.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/group_codec.cuh"
#include "thinwire/kernels/int8.h"

namespace thinwire {
namespace {

using namespace coded;

struct Int8Device {
  std::uint32_t elements, group;
  bool random;

  __host__ __device__ std::size_t room_bytes() const { return group * sizeof(float); }

  __host__ __device__ std::uint64_t block_at(std::uint32_t block) const {
    return std::uint64_t{block} * (int8_block_header + group);
  }

  template <unsigned size>
  __device__ Int8Scale measure(const float* x, std::uint32_t count) const {
    float smallest = x[0], largest = x[0];
    bool finite = true;
    for (std::uint32_t i = team_thread<size>(); i < count; i += size) {
      smallest = fminf(smallest, x[i]);
      largest = fmaxf(largest, x[i]);
      finite = finite && is_finite(x[i]);
    }
    smallest = team_combine<size>(smallest, [](float a, float b) { return fminf(a, b); });
    largest = team_combine<size>(largest, [](float a, float b) { return fmaxf(a, b); });
    const int all = team_combine<size>(finite ? 1 : 0, [](int a, int b) { return a & b; });
    return int8_scale(smallest, largest, all != 0);
  }

  __device__ std::uint8_t* put_scale(std::uint32_t first, float lo, float step, bool mine,
                                     std::uint8_t* payload) const {
    std::uint8_t* const at = payload + block_at(first / group);
    if (mine) {
      reinterpret_cast<float*>(at)[0] = lo;
      reinterpret_cast<float*>(at)[1] = step;
    }
    return at + int8_block_header;
  }

  template <unsigned size>
  __device__ bool write(const float* x, std::uint32_t first, std::uint32_t count,
                        const Int8Scale& scale, DrawKey key, std::uint8_t* payload,
                        float* v) const {
    const unsigned thread = team_thread<size>();
    std::uint8_t* const codes = put_scale(first, scale.lo, scale.step, thread == 0, payload);
    for (std::uint32_t i = thread; i < count; i += size) {
      const std::uint8_t code =
          int8_code(random, scale, x[i], random ? draw_at(key, first + i) : 0u);
      codes[i] = code;
      if (v != nullptr) v[i] = x[i] - (scale.lo + static_cast<float>(code) * scale.step);
    }
    return true;
  }

  template <unsigned size>
  __device__ void refuse(std::uint32_t first, std::uint32_t count, std::uint8_t* payload) const {
    const unsigned thread = team_thread<size>();
    std::uint8_t* const codes = put_scale(first, 0, 0, thread == 0, payload);
    for (std::uint32_t i = thread; i < count; i += size) codes[i] = 0;
  }

  static constexpr unsigned rows = 8;
  struct Room {};

  __device__ Int8Scale measure_rows(const float* x) const {
    float smallest = x[0], largest = x[0];
#pragma unroll
    for (unsigned j = 1; j < rows; ++j) {
      smallest = fminf(smallest, x[j]);
      largest = fmaxf(largest, x[j]);
    }
    const bool finite = all_finite<rows>(x);
    return int8_scale(least(smallest), -least(-largest), finite);
  }

  // Of a warp: as integers of the same order.
  __device__ static float least(float mine) {
    const auto bits = std::bit_cast<std::int32_t>(mine);
    const int order = __reduce_min_sync(~0u, bits ^ (bits >> 31 & 0x7fffffff));
    return std::bit_cast<float>(order ^ (order >> 31 & 0x7fffffff));
  }

  __device__ bool write_rows(const float* x, std::uint32_t first, const Int8Scale& scale,
                             DrawKey key, Room&, std::uint8_t* payload, float* v) const {
    const unsigned lane = threadIdx.x % warp;
    std::uint8_t* const codes = put_scale(first, scale.lo, scale.step, lane == 0, payload);
    std::uint32_t draw[rows] = {};
    if (random) draw_rows<rows>(key, first, draw);
#pragma unroll
    for (unsigned j = 0; j < rows; ++j) {
      const std::uint8_t code = int8_code(random, scale, x[j], draw[j]);
      codes[warp * j + lane] = code;
      if (v != nullptr)
        v[warp * j + lane] = x[j] - (scale.lo + static_cast<float>(code) * scale.step);
    }
    return true;
  }

  static constexpr std::uint32_t step = 4;
  struct Place {
    std::uint64_t scale, codes;
    bool starts;
  };

  __device__ Place place(std::uint32_t first, std::uint32_t) const {
    const std::uint32_t block = first / group, inside = first - block * group;
    return {block_at(block), block_at(block) + int8_block_header + inside, inside == 0};
  }

  std::vector<block_frame::LineSection> sections(std::uint32_t tile, std::uint64_t bytes) const {
    return {block_frame::whole_section(bytes, block_at(tile / group))};
  }

  // Blocks start at multiples of 8 bytes, so four codes are a word.
  __device__ bool add(const std::uint8_t* payload, const Place& place, std::uint32_t count,
                      float share, float* sum) const {
    const auto* const numbers = reinterpret_cast<const float*>(payload + place.scale);
    float lo = numbers[0], step_size = numbers[1];
    const bool sound = !place.starts || int8_is_sound(lo, step_size);
    lo *= share;
    step_size *= share;
    std::uint32_t codes = 0;
    if (count == step) {
      codes = *reinterpret_cast<const std::uint32_t*>(payload + place.codes);
    } else {
      codes = static_cast<std::uint32_t>(load_bytes(payload + place.codes, count));
    }
#pragma unroll
    for (unsigned i = 0; i < step; ++i)
      sum[i] += lo + static_cast<float>(codes >> 8 * i & 0xffu) * step_size;
    return sound;
  }

  __device__ bool add_sixteen(const std::uint8_t* payload, const Place& place, float share,
                              float* sum) const {
    const float2 numbers = *reinterpret_cast<const float2*>(payload + place.scale);
    const auto* const codes = reinterpret_cast<const uint2*>(payload + place.codes);
    const uint2 low = codes[0], high = codes[1];
    const bool sound = !place.starts || int8_is_sound(numbers.x, numbers.y);
    const float lo = numbers.x * share, step_size = numbers.y * share;
    // 2^15 + code in one instruction; the fused sum rounds code * step_size once.
    constexpr float lift = 0x1p15f;
    const auto add_all = [&](const auto& product) {
#pragma unroll
      for (unsigned k = 0; k < 4; ++k) {
        const std::uint32_t four = k == 0 ? low.x : k == 1 ? low.y : k == 2 ? high.x : high.y;
#pragma unroll
        for (unsigned i = 0; i < 4; ++i)
          sum[4 * k + i] += lo + product(__uint_as_float(__byte_perm(
                                     four, std::bit_cast<std::uint32_t>(lift), 0x7404 | i << 4)));
      }
    };
    if (step_size < 0x1p100f) {
      const float down = -lift * step_size;
      add_all([&](float lifted) { return __fmaf_rn(lifted, step_size, down); });
    } else {
      add_all([&](float lifted) { return (lifted - lift) * step_size; });
    }
    return sound;
  }

  __device__ float value(const std::uint8_t* payload, std::uint32_t i) const {
    const Place at = place(i, 1);
    const auto* const numbers = reinterpret_cast<const float*>(payload + at.scale);
    return numbers[0] + static_cast<float>(payload[at.codes]) * numbers[1];
  }
};

}  // namespace

std::unique_ptr<CudaCodec> int8_codec_cuda(const Int8Rule& rule, std::size_t elements,
                                           Device device) {
  const Int8Device on{static_cast<std::uint32_t>(elements), static_cast<std::uint32_t>(rule.block),
                      rule.random};
  return std::make_unique<GroupCodec<Int8Device>>("int8", on, int8_bytes(rule, elements), device);
}

}  // namespace thinwire
