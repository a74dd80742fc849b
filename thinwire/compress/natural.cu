// natural.cu: powers of two in device memory.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/coded.cuh"
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

  static constexpr std::uint32_t step = 4;
  struct Place {
    std::uint32_t first;
    bool ends;
  };

  __device__ Place place(std::uint32_t first, std::uint32_t count) const {
    return {first, first + count == elements};
  }

  __host__ __device__ Spans spans(std::uint32_t first, std::uint32_t count) const {
    const std::uint64_t signs = std::uint64_t{elements} + first / 8;
    return {{first, signs}, {std::uint64_t{first} + count, signs + (count + 7) / 8}};
  }

  template <typename Payload>
  __device__ bool add(const Payload& payload, const Payload& signs_in, const Place& place,
                      std::uint32_t count, float share, float* sum) const {
    const std::uint8_t* const at = payload + place.first;
    const std::uint32_t exponents = count == step
                                        ? *reinterpret_cast<const std::uint32_t*>(at)
                                        : static_cast<std::uint32_t>(load_bytes(at, count));
    const std::uint32_t byte = signs_in[std::size_t{elements} + place.first / 8];
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
