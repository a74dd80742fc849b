// values.cc: the value coders.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/wire/values.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "thinwire/wire/bits.h"
#include "thinwire/wire/value_rule.h"

namespace thinwire {
namespace {

using namespace value_rule;

constexpr Status not_finite{Code::bad_value, "values: not finite"};
constexpr Status bad_header{Code::bad_value, "values: the chunk's header is out of range"};
constexpr Status bad_padding{Code::bad_value, "values: padding is not zero"};

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

template <typename Half>
void encode_half(std::span<float> values, Bytes out) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t code = half_code<Half>(values[i]);
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
    const std::uint32_t code = scale.code(values[i]);
    if (level_bits == 7) {
      codes[i] = static_cast<std::byte>(code);
    } else if (i % 2 == 0) {
      codes[i / 2] = static_cast<std::byte>(code);
    } else {
      codes[i / 2] |= static_cast<std::byte>(code << 4);
    }
    values[i] = scale.value(code);
  }
}

template <unsigned level_bits>
Status decode_log(ConstBytes bytes, std::span<float> out) {
  const std::uint32_t lo = load16(bytes, 0), hi = load16(bytes, 2);
  if (lo > hi || hi > largest_bf16) return bad_header;
  const LogScale scale(lo, hi, level_bits);
  const ConstBytes codes = bytes.subspan(log_header);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto byte = std::to_integer<std::uint32_t>(codes[level_bits == 7 ? i : i / 2]);
    out[i] = scale.value(level_bits == 7 || i % 2 == 0 ? byte : byte >> 4);
  }
  if (level_bits == 3 && out.size() % 2 == 1 && (codes.back() >> 4) != std::byte{0})
    return bad_padding;
  return {};
}

// sign: the mean magnitude, summed as integers so that no order of work changes it

// Sum of the magnitudes in units of 2^(top - 157), each rounded down; `top` is the largest exponent
// field, so that every term is below 2^31.
std::uint64_t sum_magnitudes(std::span<const float> values, std::uint32_t top) {
  std::uint64_t sum = 0;
  for (const float value : values) sum += sign_term(magnitude_of(value), top);
  return sum;
}

std::uint32_t mean_magnitude(std::span<const float> values) {
  std::uint32_t largest = 0;
  for (const float value : values) largest = std::max(largest, magnitude_of(value));
  const std::uint32_t top = exponent_of(largest);
  return sign_mean(sum_magnitudes(values, top), values.size(), top);
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

}  // namespace

std::size_t value_bits(ValueCoder coder) { return value_rule::code_bits(coder); }

std::size_t value_bytes(ValueCoder coder, std::size_t count) {
  return static_cast<std::size_t>(value_rule::bytes(coder, count));
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
