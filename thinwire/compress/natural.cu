// natural.cu: powers of two in device memory.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/group_codec.cuh"
#include "thinwire/kernels/levels.h"
#include "thinwire/kernels/natural.h"

namespace thinwire {
namespace {

using namespace coded;

// Elements are coded each for itself; groups only share the work.
struct NaturalDevice {
  std::uint32_t elements;
  std::uint32_t group = 512;

  struct Scale {
    bool finite;
  };

  __host__ __device__ std::size_t room_bytes() const { return group * sizeof(float); }

  // An element that is not finite is refused alone, in write().
  template <unsigned size>
  __device__ Scale measure(const float*, std::uint32_t) const {
    return {true};
  }

  template <unsigned size>
  __device__ bool write(const float* x, std::uint32_t first, std::uint32_t count, Scale,
                        DrawKey key, std::uint8_t* payload, float* v) const {
    const std::uint32_t bytes = (count + 7) / 8;
    std::uint8_t* const signs = payload + std::size_t{elements} + first / 8;
    bool finite = true;
    for (std::uint32_t base = 0; base < count; base += size) {
      const std::uint32_t i = base + team_thread<size>();
      bool negative = false;
      if (i < count) {
        const auto bits = std::bit_cast<std::uint32_t>(x[i]);
        negative = bits >> 31 != 0;
        std::uint8_t exponent = 0;
        if (is_finite(x[i])) {
          exponent = natural_exponent(bits, draw_at(key, first + i));
          if (v != nullptr) v[i] = x[i] - natural_power(exponent, negative);
        } else {
          finite = false;
        }
        payload[first + i] = exponent;
      }
      const std::uint32_t word = __ballot_sync(~0u, negative);
      const std::uint32_t row = (i - i % warp) / 8;
      if (row < bytes) write_row(word, signs + row, bytes - row);
    }
    return finite;
  }

  template <unsigned size>
  __device__ void refuse(std::uint32_t, std::uint32_t, std::uint8_t*) const {}

  static constexpr unsigned rows = 16;
  struct Room {};

  __device__ Scale measure_rows(const float*) const { return {true}; }

  __device__ bool write_rows(const float* x, std::uint32_t first, Scale, DrawKey key, Room&,
                             std::uint8_t* payload, float* v) const {
    const unsigned lane = threadIdx.x % warp;
    std::uint32_t draw[rows];
    draw_rows<rows>(key, first, draw);
    const bool finite = all_finite<rows>(x);
    std::uint32_t signs = 0;  // of row `lane`
    const auto code = [&](const auto& good) {
#pragma unroll
      for (unsigned j = 0; j < rows; ++j) {
        const auto bits = std::bit_cast<std::uint32_t>(x[j]);
        const std::uint8_t exponent =
            good(x[j]) ? natural_exponent(bits, draw[j]) : std::uint8_t{0};
        const bool negative = bits >> 31 != 0;
        payload[std::size_t{first} + warp * j + lane] = exponent;
        if (v != nullptr && good(x[j]))
          v[warp * j + lane] = x[j] - natural_power(exponent, negative);
        const std::uint32_t word = __ballot_sync(~0u, negative);
        if (lane / 2 == j) signs = word;
      }
    };
    if (finite) {
      code([](float) { return true; });
    } else {
      code([](float value) { return is_finite(value); });
    }
    // Two lanes have the word of a row: each writes two of its bytes.
    std::uint8_t* const at = payload + std::size_t{elements} + first / 8 + 2 * lane;
    signs >>= 16 * (lane % 2);
    at[0] = static_cast<std::uint8_t>(signs);
    at[1] = static_cast<std::uint8_t>(signs >> 8);
    return finite;
  }

  static constexpr std::uint32_t step = 4;
  struct Place {
    std::uint32_t first;
    bool ends;
  };

  __device__ Place place(std::uint32_t first, std::uint32_t count) const {
    return {first, first + count == elements};
  }

  // Exponents and signs; the line where they meet is of the signs.
  std::vector<block_frame::LineSection> sections(std::uint32_t tile, std::uint64_t bytes) const {
    block_frame::LineSection whole = block_frame::whole_section(bytes, tile), signs = whole;
    whole.end = signs.first = static_cast<std::uint32_t>(
        (block_header_bytes + std::uint64_t{elements}) / block_frame::line_bytes);
    signs.each = whole.each / 8;
    return {whole, signs};
  }

  __device__ bool add(const std::uint8_t* payload, const Place& place, std::uint32_t count,
                      float share, float* sum) const {
    const std::uint8_t* const at = payload + place.first;
    const std::uint32_t exponents = count == step
                                        ? *reinterpret_cast<const std::uint32_t*>(at)
                                        : static_cast<std::uint32_t>(load_bytes(at, count));
    const std::uint32_t byte = payload[std::size_t{elements} + place.first / 8];
    const std::uint32_t signs = byte >> place.first % 8;
    bool sound = !place.ends || elements % 8 == 0 || byte >> elements % 8 == 0;
#pragma unroll
    for (unsigned i = 0; i < step; ++i) {
      const std::uint32_t exponent = exponents >> 8 * i & 0xffu;
      sound = sound && exponent != 255;
      sum[i] += natural_power(exponent, (signs >> i & 1u) != 0) * share;
    }
    return sound;
  }

  // Four numbers at a time: the upper bytes of the floats have the sign and seven bits of the
  // exponent, the next bytes the last bit.
  __device__ bool add_sixteen(const std::uint8_t* payload, const Place& place, float share,
                              float* sum) const {
    const auto* const exponents = reinterpret_cast<const uint2*>(payload + place.first);
    const std::uint8_t* const signs = payload + std::size_t{elements} + place.first / 8;
    const uint2 low = exponents[0], high = exponents[1];
    const std::uint32_t negative = signs[0] | std::uint32_t{signs[1]} << 8;
    std::uint32_t bad = 0;
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      const std::uint32_t four = k == 0 ? low.x : k == 1 ? low.y : k == 2 ? high.x : high.y;
      bad |= (0xfefefefeu - four) & four & 0x80808080u;  // a byte of 255
      const std::uint32_t spread = (negative >> 4 * k & 15u) * 0x10204080u & 0x80808080u;
      const std::uint32_t upper = (four >> 1 & 0x7f7f7f7fu) | spread;
      const std::uint32_t lower = four << 7 & 0x80808080u;
      const std::uint32_t first = __byte_perm(lower, upper, 0x5140);
      const std::uint32_t second = __byte_perm(lower, upper, 0x7362);
      sum[4 * k] += __uint_as_float(first << 16) * share;
      sum[4 * k + 1] += __uint_as_float(first & 0xffff0000u) * share;
      sum[4 * k + 2] += __uint_as_float(second << 16) * share;
      sum[4 * k + 3] += __uint_as_float(second & 0xffff0000u) * share;
    }
    return bad == 0;
  }

  __device__ float value(const std::uint8_t* payload, std::uint32_t i) const {
    return natural_power(payload[i], (payload[std::size_t{elements} + i / 8] >> i % 8 & 1) != 0);
  }
};

}  // namespace

std::unique_ptr<CudaCodec> natural_codec_cuda(std::size_t elements, Device device) {
  const NaturalDevice on{static_cast<std::uint32_t>(elements)};
  return std::make_unique<GroupCodec<NaturalDevice>>("natural", on,
                                                     elements + level_bytes(elements, 1), device);
}

}  // namespace thinwire
