// elias.cc: gaps, signs and levels in gamma codes.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/wire/elias.h"

#include <algorithm>

#include "thinwire/wire/bits.h"

namespace thinwire {
namespace {

constexpr unsigned largest_log2 = 13;  // of a gap: elias_most

struct Field {
  std::uint64_t value = 0;
  unsigned length = 0;
};

Field gamma(std::uint32_t number) {
  const auto log2 = static_cast<unsigned>(std::bit_width(number)) - 1;
  const std::uint64_t below = number - (1u << log2);
  return {(below << 1 | 1u) << log2, 2 * log2 + 1};
}

// Returns 0 when the next code is not one that the encoder writes.
std::uint32_t read_gamma(BitReader& reader) {
  const std::uint64_t bits = reader.peek();
  const auto log2 = static_cast<unsigned>(std::countr_zero(bits));
  if (log2 > largest_log2) return 0;
  reader.skip(2 * log2 + 1);
  const std::uint32_t leading = 1u << log2;
  return leading | (static_cast<std::uint32_t>(bits >> (log2 + 1)) & (leading - 1));
}

constexpr Status bad_code{Code::bad_value, "its levels are not coded as they should be"};

}  // namespace

std::size_t elias_encode(const std::uint8_t* levels, const std::uint8_t* signs, std::size_t count,
                         Bytes out) {
  BitWriter writer(out);
  std::size_t next = 0;  // the element after the last one written
  for (std::size_t i = 0; i < count; ++i) {
    if (levels[i] == 0) continue;
    const Field gap = gamma(static_cast<std::uint32_t>(i - next + 1)), level = gamma(levels[i]);
    const std::uint64_t sign = signs[i / 8] >> (i % 8) & 1u;
    writer.put(gap.value | (sign | level.value << 1) << gap.length, gap.length + 1 + level.length);
    next = i + 1;
  }
  if (next < count) {
    const Field gap = gamma(static_cast<std::uint32_t>(count - next + 1));
    writer.put(gap.value, gap.length);
  }
  return writer.bytes();
}

Status elias_decode(ConstBytes bytes, std::size_t count, unsigned most, std::uint8_t* levels,
                    std::uint8_t* signs, std::size_t& used) {
  std::fill_n(levels, count, std::uint8_t{0});
  std::fill_n(signs, (count + 7) / 8, std::uint8_t{0});
  BitReader reader(bytes);
  for (std::size_t next = 0; next < count;) {
    const std::uint32_t gap = read_gamma(reader);
    if (gap == 0 || gap > count - next + 1) return bad_code;
    const std::size_t i = next + gap - 1;
    if (i == count) break;
    const bool negative = (reader.peek() & 1u) != 0;
    reader.skip(1);
    const std::uint32_t level = read_gamma(reader);
    if (level == 0 || level > most) return bad_code;
    levels[i] = static_cast<std::uint8_t>(level);
    if (negative) signs[i / 8] = static_cast<std::uint8_t>(signs[i / 8] | 1u << (i % 8));
    next = i + 1;
  }
  if (reader.overrun()) return {Code::truncated, "its levels end too early"};
  if (!reader.padding_is_zero()) return bad_code;
  used = reader.bytes_used();
  return {};
}

}  // namespace thinwire
