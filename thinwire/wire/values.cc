// values.cc: the value coders.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/wire/values.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "thinwire/core/half.h"
#include "thinwire/wire/bits.h"
#include "thinwire/wire/divide.h"

namespace thinwire {
namespace {

constexpr std::uint32_t sign_bit = 0x80000000u, infinity = 0x7f800000u;
constexpr std::uint16_t largest_bf16 = 0x7f7f, largest_f16 = 0x7bff;
constexpr std::size_t log_header = 4, sign_header = 2;

constexpr Status not_finite{Code::bad_value, "values: not finite"};
constexpr Status bad_header{Code::bad_value, "values: the chunk's header is out of range"};
constexpr Status bad_padding{Code::bad_value, "values: padding is not zero"};

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
std::uint32_t magnitude_of(float value) { return bits_of(value) & ~sign_bit; }
float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

void store16(Bytes out, std::size_t at, std::uint32_t value) {
  const auto word = static_cast<std::uint16_t>(value);
  std::memcpy(out.data() + at, &word, sizeof word);
}

std::uint16_t load16(ConstBytes bytes, std::size_t at) {
  std::uint16_t word = 0;
  std::memcpy(&word, bytes.data() + at, sizeof word);
  return word;
}

// f32

void encode_f32(std::span<const float> values, Bytes out) {
  std::memcpy(out.data(), values.data(), values.size_bytes());
}

Status decode_f32(ConstBytes bytes, std::span<float> out) {
  std::memcpy(out.data(), bytes.data(), out.size_bytes());
  for (const float value : out)
    if (magnitude_of(value) >= infinity) return not_finite;
  return {};
}

// f16 and bf16: a pair of conversions and the largest finite pattern

struct F16 {
  static constexpr std::uint16_t largest = largest_f16;
  static std::uint16_t from(float value) { return to_f16(value); }
  static float to(std::uint16_t bits) { return from_f16(bits); }
};

struct Bf16 {
  static constexpr std::uint16_t largest = largest_bf16;
  static std::uint16_t from(float value) { return to_bf16(value); }
  static float to(std::uint16_t bits) { return from_bf16(bits); }
};

template <typename Half>
void encode_half(std::span<float> values, Bytes out) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t half = Half::from(values[i]);
    const std::uint32_t sign = half & 0x8000u;
    const std::uint32_t code = sign | std::min<std::uint32_t>(half ^ sign, Half::largest);
    store16(out, 2 * i, code);
    values[i] = Half::to(static_cast<std::uint16_t>(code));
  }
}

template <typename Half>
Status decode_half(ConstBytes bytes, std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::uint16_t code = load16(bytes, 2 * i);
    if ((code & 0x7fffu) > Half::largest) return not_finite;
    out[i] = Half::to(code);
  }
  return {};
}

// log8 and log4: levels evenly spaced over the bit patterns between the smallest and the largest
// magnitude, which are a piecewise linear logarithm. The ends are kept to 16 bits, so the span is a
// multiple of 2^16 and every division is by a number below 2^16, or a shift.

class LogScale {
 public:
  LogScale(std::uint32_t lo, std::uint32_t hi, unsigned level_bits)
      : bottom_(lo << 16), width_(hi - lo + 1), level_bits_(level_bits), divide_(width_) {}

  std::uint32_t level(std::uint32_t magnitude) const {
    const std::uint64_t scaled = std::uint64_t{magnitude - bottom_} << level_bits_;
    return divide_.quotient(static_cast<std::uint32_t>(scaled >> 16));
  }
  std::uint32_t magnitude(std::uint32_t level) const {
    return bottom_ + (((2 * level + 1) * width_) << (15 - level_bits_));
  }

 private:
  std::uint32_t bottom_, width_;
  unsigned level_bits_;
  Divider divide_;
};

template <unsigned level_bits>
void encode_log(std::span<float> values, Bytes out) {
  std::uint32_t lo = ~0u, hi = 0;
  for (const float value : values) {
    lo = std::min(lo, magnitude_of(value));
    hi = std::max(hi, magnitude_of(value));
  }
  store16(out, 0, lo >> 16);
  store16(out, 2, hi >> 16);
  const LogScale scale(lo >> 16, hi >> 16, level_bits);
  const Bytes codes = out.subspan(log_header);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t sign = bits_of(values[i]) & sign_bit;
    const std::uint32_t level = scale.level(magnitude_of(values[i]));
    const std::uint32_t code = (sign >> (31 - level_bits)) | level;
    if (level_bits == 7) {
      codes[i] = static_cast<std::byte>(code);
    } else if (i % 2 == 0) {
      codes[i / 2] = static_cast<std::byte>(code);
    } else {
      codes[i / 2] |= static_cast<std::byte>(code << 4);
    }
    values[i] = float_of(sign | scale.magnitude(level));
  }
}

template <unsigned level_bits>
Status decode_log(ConstBytes bytes, std::span<float> out) {
  const std::uint32_t lo = load16(bytes, 0), hi = load16(bytes, 2);
  if (lo > hi || hi > largest_bf16) return bad_header;
  const LogScale scale(lo, hi, level_bits);
  const ConstBytes codes = bytes.subspan(log_header);
  constexpr std::uint32_t levels = 1u << level_bits;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto byte = std::to_integer<std::uint32_t>(codes[level_bits == 7 ? i : i / 2]);
    const std::uint32_t code = level_bits == 7 || i % 2 == 0 ? byte : byte >> 4;
    const std::uint32_t sign = (code & levels) << (31 - level_bits);
    out[i] = float_of(sign | scale.magnitude(code & (levels - 1)));
  }
  if (level_bits == 3 && out.size() % 2 == 1 && (codes.back() >> 4) != std::byte{0})
    return bad_padding;
  return {};
}

// sign: the mean magnitude, summed as integers so that no order of work changes it

// Exponent field of a bit pattern; subnormals share the smallest normal's scale.
std::uint32_t exponent_of(std::uint32_t magnitude) { return std::max(magnitude >> 23, 1u); }

std::uint32_t significand_of(std::uint32_t magnitude) {
  return (magnitude & 0x7fffffu) | (magnitude >> 23 == 0 ? 0u : 0x800000u);
}

// Sum of the magnitudes in units of 2^(top - 157), each rounded down; `top` is the largest exponent
// field, so that every term is below 2^31.
std::uint64_t sum_magnitudes(std::span<const float> values, std::uint32_t top) {
  std::uint64_t sum = 0;
  for (const float value : values) {
    const std::uint32_t magnitude = magnitude_of(value);
    const std::uint32_t shift = std::min(top - exponent_of(magnitude), 31u);
    sum += (significand_of(magnitude) << 7) >> shift;
  }
  return sum;
}

// The bf16 nearest to mean * 2^(top - 157), ties to even; at least the smallest, at most the
// largest finite.
std::uint32_t round_to_bf16(std::uint32_t mean, std::uint32_t top) {
  const int length = static_cast<int>(std::bit_width(mean));
  const int exponent = std::max(static_cast<int>(top) + length - 31, 1);  // field of the result
  const int drop = exponent - static_cast<int>(top) + 23;  // bits below the result's last
  std::uint32_t rounded = 0;
  if (drop <= 0) {
    rounded = mean << -drop;
  } else {
    const std::uint32_t half = (1u << (drop - 1)) - 1 + ((mean >> drop) & 1u);
    rounded = (mean + half) >> drop;
  }
  const std::uint32_t bits = (static_cast<std::uint32_t>(exponent - 1) << 7) + rounded;
  return std::clamp<std::uint32_t>(bits, 1, largest_bf16);
}

std::uint32_t mean_magnitude(std::span<const float> values) {
  std::uint32_t largest = 0;
  for (const float value : values) largest = std::max(largest, magnitude_of(value));
  const std::uint32_t top = exponent_of(largest);
  const std::uint64_t mean = sum_magnitudes(values, top) / values.size();
  return round_to_bf16(static_cast<std::uint32_t>(std::max<std::uint64_t>(mean, 1)), top);
}

void encode_sign(std::span<float> values, Bytes out) {
  const std::uint32_t mean = mean_magnitude(values);
  store16(out, 0, mean);
  BitWriter writer(out.subspan(sign_header));
  for (float& value : values) {
    const std::uint32_t sign = bits_of(value) & sign_bit;
    writer.put(sign >> 31, 1);
    value = float_of(sign | mean << 16);
  }
}

Status decode_sign(ConstBytes bytes, std::span<float> out) {
  const std::uint32_t mean = load16(bytes, 0);
  if (mean == 0 || mean > largest_bf16) return bad_header;
  const ConstBytes signs = bytes.subspan(sign_header);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto byte = std::to_integer<std::uint32_t>(signs[i / 8]);
    out[i] = float_of(((byte >> (i % 8)) & 1u) << 31 | mean << 16);
  }
  const std::size_t used = out.size() % 8;
  if (used != 0 && (signs.back() >> used) != std::byte{0}) return bad_padding;
  return {};
}

std::size_t header_bytes(ValueCoder coder) {
  switch (coder) {
    case ValueCoder::log8:
    case ValueCoder::log4:
      return log_header;
    case ValueCoder::sign:
      return sign_header;
    case ValueCoder::f32:
    case ValueCoder::f16:
    case ValueCoder::bf16:
      break;
  }
  return 0;
}

}  // namespace

std::size_t value_bits(ValueCoder coder) {
  constexpr std::size_t bits[value_coder_count] = {32, 16, 16, 8, 4, 1};
  return bits[static_cast<std::size_t>(coder)];
}

std::size_t value_bytes(ValueCoder coder, std::size_t count) {
  return header_bytes(coder) + (count * value_bits(coder) + 7) / 8;
}

void value_encode(ValueCoder coder, std::span<float> values, Bytes out) {
  switch (coder) {
    case ValueCoder::f32:
      return encode_f32(values, out);
    case ValueCoder::f16:
      return encode_half<F16>(values, out);
    case ValueCoder::bf16:
      return encode_half<Bf16>(values, out);
    case ValueCoder::log8:
      return encode_log<7>(values, out);
    case ValueCoder::log4:
      return encode_log<3>(values, out);
    case ValueCoder::sign:
      return encode_sign(values, out);
  }
}

Status value_decode(ValueCoder coder, ConstBytes bytes, std::span<float> out) {
  if (static_cast<std::size_t>(coder) >= value_coder_count)
    return {Code::bad_value, "values: unknown coder"};
  if (out.empty() || bytes.size() != value_bytes(coder, out.size()))
    return {Code::mismatch, "values: not the length that their number needs"};
  switch (coder) {
    case ValueCoder::f32:
      return decode_f32(bytes, out);
    case ValueCoder::f16:
      return decode_half<F16>(bytes, out);
    case ValueCoder::bf16:
      return decode_half<Bf16>(bytes, out);
    case ValueCoder::log8:
      return decode_log<7>(bytes, out);
    case ValueCoder::log4:
      return decode_log<3>(bytes, out);
    case ValueCoder::sign:
      break;
  }
  return decode_sign(bytes, out);
}

}  // namespace thinwire
