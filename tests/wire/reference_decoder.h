// reference_decoder.h: a slow decoder written from docs/wire_format.md alone, one bit at a time. It
// shares no code with thinwire/wire, so that a mistake on one side shows.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace thinwire::reference {

using ByteSpan = std::span<const std::byte>;
using Indices = std::vector<std::uint32_t>;
using Values = std::vector<float>;

inline unsigned byte_at(ByteSpan bytes, std::size_t i) {
  return std::to_integer<unsigned>(bytes[i]);
}

inline std::vector<bool> to_bits(ByteSpan bytes) {
  std::vector<bool> bits;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    for (unsigned b = 0; b < 8; ++b) bits.push_back((byte_at(bytes, i) >> b) & 1u);
  return bits;
}

// A stream of bits that returns nothing once it is exhausted.
struct BitStream {
  std::vector<bool> bits;
  std::size_t at = 0;
  bool exhausted = false;

  bool next() {
    if (at >= bits.size()) {
      exhausted = true;
      return true;  // ends every unary number
    }
    return bits[at++];
  }
  std::uint64_t number(unsigned count) {
    std::uint64_t value = 0;
    for (unsigned i = 0; i < count; ++i) value += static_cast<std::uint64_t>(next()) << i;
    return value;
  }
  // Whether only the zero padding of the last byte is left.
  bool clean_end() const {
    if (exhausted || bits.size() - at >= 8) return false;
    for (std::size_t i = at; i < bits.size(); ++i)
      if (bits[i]) return false;
    return true;
  }
};

inline unsigned bit_length(std::uint64_t value) {
  unsigned length = 0;
  for (; value > 0; value /= 2) ++length;
  return length;
}

// Nothing where the stream ends, or no extent has room for the gap.
inline std::optional<std::uint64_t> golomb_gap(BitStream& stream, std::uint64_t divisor,
                                               std::uint64_t extent) {
  const unsigned low = bit_length(divisor) - 1;
  const std::uint64_t short_ones = (2ull << low) - divisor;
  std::uint64_t quotient = 0;
  while (!stream.next()) ++quotient;
  std::uint64_t remainder = stream.number(low);
  if (remainder >= short_ones) remainder = 2 * remainder + stream.number(1) - short_ones;
  if (stream.exhausted || quotient > extent) return std::nullopt;
  return quotient * divisor + remainder;
}

inline std::optional<Indices> golomb(unsigned parameter, ByteSpan bytes, std::uint64_t extent,
                                     std::size_t count) {
  const unsigned e = parameter / 8, f = parameter % 8;
  const std::uint64_t eighths = (8ull + f) << e;
  if (eighths % 8 != 0) return std::nullopt;
  BitStream stream{to_bits(bytes)};
  Indices out;
  std::uint64_t next = 0;
  for (std::size_t j = 0; j < count; ++j) {
    const auto gap = golomb_gap(stream, eighths / 8, extent);
    if (!gap) return std::nullopt;
    const std::uint64_t index = next + *gap;
    if (index >= extent) return std::nullopt;
    out.push_back(static_cast<std::uint32_t>(index));
    next = index + 1;
  }
  if (!stream.clean_end()) return std::nullopt;
  return out;
}

inline std::optional<Indices> elias_fano(unsigned low, ByteSpan bytes, std::uint64_t extent,
                                         std::size_t count) {
  if (low > 31) return std::nullopt;
  const std::size_t split = (count * low + 7) / 8;
  if (split > bytes.size()) return std::nullopt;
  BitStream lows{to_bits(bytes.first(split))}, highs{to_bits(bytes.subspan(split))};
  Indices out;
  std::uint64_t high = 0;
  for (std::size_t j = 0; j < count; ++j) {
    while (!highs.next()) ++high;
    if (highs.exhausted || high > extent) return std::nullopt;
    const std::uint64_t index = high * (1ull << low) + lows.number(low);
    if (index >= extent || (j > 0 && index <= out.back())) return std::nullopt;
    out.push_back(static_cast<std::uint32_t>(index));
  }
  if (!highs.clean_end() || !lows.clean_end()) return std::nullopt;
  return out;
}

// -1, 0 or 1 for each of the m elements of a block of quanta.
inline std::optional<std::vector<int>> quanta(ByteSpan bytes, std::uint64_t m) {
  std::vector<int> out(m);
  const std::size_t plane = (m + 7) / 8;
  if (bytes.empty()) return out;
  if (bytes.size() > 2 * plane) return std::nullopt;
  if (bytes.size() == 2 * plane) {
    const auto plus = to_bits(bytes.first(plane)), minus = to_bits(bytes.subspan(plane));
    for (std::size_t i = 0; i < 8 * plane; ++i) {
      if ((plus[i] && minus[i]) || (i >= m && (plus[i] || minus[i]))) return std::nullopt;
      if (i < m) out[i] = static_cast<int>(plus[i]) - static_cast<int>(minus[i]);
    }
    return out;
  }
  BitStream stream{to_bits(bytes)};
  const std::uint64_t k = stream.number(bit_length(m - 1)) + 1;
  if (k > m) return std::nullopt;
  const std::uint64_t divisor = std::max<std::uint64_t>(1, m * 45426 / (k * 65536));
  std::uint64_t next = 0;
  for (std::uint64_t j = 0; j < k; ++j) {
    const auto gap = golomb_gap(stream, divisor, m);
    if (!gap || next + *gap >= m) return std::nullopt;
    next += *gap;
    out[next++] = stream.next() ? -1 : 1;
  }
  if (!stream.clean_end()) return std::nullopt;
  return out;
}

// The adaptive model of the gap coder.
struct GapModel {
  struct Node {
    std::uint64_t p = 32768, c = 0;
  };
  std::array<Node, 32> length;
  std::array<std::array<Node, 4>, 33> mantissa;

  static std::uint64_t clamp(std::uint64_t p) { return p < 32 ? 32 : p > 65503 ? 65503 : p; }

  GapModel(std::uint64_t n, std::uint64_t k) {
    const std::uint64_t one = 1ull << 32;
    std::array<std::uint64_t, 33> q{}, s{};
    q[1] = ((n - k) << 32) / n;
    if (q[1] > one - 1) q[1] = one - 1;
    for (unsigned j = 2; j <= 32; ++j) q[j] = (q[j - 1] * q[j - 1]) >> 32;
    s[0] = one;
    for (unsigned j = 1; j <= 31; ++j) s[j] = (s[j - 1] * q[j]) >> 32;
    for (unsigned level = 0; level < 5; ++level) {
      const unsigned width = 32u >> level;
      for (unsigned i = 0; i < (1u << level); ++i) {
        const unsigned from = i * width, to = from + width, middle = from + width / 2;
        const std::uint64_t d = s[from] - s[to];
        length[(1u << level) + i] = {d >= 4 ? clamp(((s[middle] - s[to]) << 16) / d) : 32768, 8};
      }
    }
    for (unsigned b = 2; b <= bit_length(n); ++b) {
      for (unsigned i = 1; i < 4; ++i) {
        const unsigned skip = i == 1 ? 1 : 2;
        const std::uint64_t power = b < skip + 1 ? 0 : q[b - skip];
        mantissa[b][i] = {clamp((power << 16) / (one + power)), 32};
      }
    }
  }

  static std::uint32_t chance(const Node& node) {
    const std::uint64_t p = node.p / 16;
    return static_cast<std::uint32_t>(p < 1 ? 1 : p > 4095 ? 4095 : p);
  }
  static void update(Node& node, bool bit) {
    const std::uint64_t rate = 131072 / (2 * node.c + 3);
    node.p = bit ? node.p + (((65535 - node.p) * rate) >> 16) : node.p - ((node.p * rate) >> 16);
    if (node.c < 60) ++node.c;
  }
};

// The range coder's interval as the document defines it, with the low end as a number of unbounded
// length: bytes, most significant first, carries propagated at once.
struct GapInterval {
  std::vector<unsigned> done;  // bytes above the window
  std::uint64_t low = 0;       // the window: 32 bits
  std::uint64_t range = 0xffffffffu;

  void add(std::uint64_t amount) {
    low += amount;
    if (low < (1ull << 32)) return;
    low -= 1ull << 32;
    std::size_t i = done.size();
    while (done[--i] == 255) done[i] = 0;
    ++done[i];
  }
  void narrow(bool bit, std::uint32_t chance) {
    const std::uint64_t bound = (range >> 12) * chance;
    if (!bit) add(bound);
    range = bit ? bound : range - bound;
    while (range < (1u << 24)) {
      done.push_back(static_cast<unsigned>(low >> 24));
      low = (low << 8) & 0xffffffffu;
      range <<= 8;
    }
  }
  std::vector<unsigned> closed() const {
    for (unsigned m = 1; m < 4; ++m) {
      const std::uint64_t unit = 1ull << (32 - 8 * m), up = (low + unit - 1) / unit * unit;
      if (up + unit <= low + range) return with(up, m);
    }
    return with(low, 4);
  }
  std::vector<unsigned> with(std::uint64_t value, unsigned m) const {
    GapInterval copy = *this;
    copy.add(value - low);
    for (unsigned i = 0; i < m; ++i)
      copy.done.push_back(static_cast<unsigned>(copy.low >> (24 - 8 * i)) & 255u);
    return copy.done;
  }
};

// Decodes by keeping the whole interval and comparing it with the bytes. The closing bytes are then
// compared with those that the encoder must have written.
inline std::optional<Indices> gap(unsigned parameter, ByteSpan bytes, std::uint64_t extent,
                                  std::size_t count) {
  if (parameter != 0) return std::nullopt;
  const auto coded = [&](std::size_t i) {
    return i < bytes.size() ? std::uint64_t{byte_at(bytes, bytes.size() - 1 - i)} : 0;
  };
  GapModel model(extent, count);
  GapInterval interval;
  std::uint64_t code = 0;  // bytes read minus the low end
  std::size_t read = 0;
  while (read < 4) code = code << 8 | coded(read++);
  const auto decode = [&](GapModel::Node& node) {
    const std::uint64_t bound = (interval.range >> 12) * GapModel::chance(node);
    const bool bit = code < bound;
    if (!bit) code = (code - bound) & 0xffffffffu;
    const std::size_t before = interval.done.size();
    interval.narrow(bit, GapModel::chance(node));
    for (std::size_t i = before; i < interval.done.size(); ++i)
      code = (code << 8 | coded(read++)) & 0xffffffffu;
    GapModel::update(node, bit);
    return bit;
  };
  BitStream plain{to_bits(bytes)};
  Indices out;
  std::uint64_t next = 0;
  for (std::size_t j = 0; j < count; ++j) {
    unsigned length = 0;
    for (unsigned node = 1, i = 0; i < 5; ++i) {
      const bool bit = decode(model.length[node]);
      length = 2 * length + bit;
      node = 2 * node + bit;
    }
    length += 1;
    std::uint64_t value = 1;
    unsigned left = length - 1;
    for (unsigned node = 1, i = 0; i < 2 && left > 0; ++i, --left) {
      const bool bit = decode(model.mantissa[length][node]);
      value = 2 * value + bit;
      node = 2 * node + bit;
    }
    value = (value << left) + plain.number(left);
    const std::uint64_t index = next + value - 1;
    if (plain.exhausted || index >= extent) return std::nullopt;
    out.push_back(static_cast<std::uint32_t>(index));
    next = index + 1;
  }
  while (plain.at % 8 != 0)
    if (plain.next()) return std::nullopt;
  const std::vector<unsigned> expected = interval.closed();
  if (expected.size() != bytes.size() - plain.at / 8) return std::nullopt;
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (expected[i] != coded(i)) return std::nullopt;
  return out;
}

inline std::optional<Indices> indices(unsigned coder, unsigned parameter, ByteSpan bytes,
                                      std::uint64_t extent, std::size_t count) {
  if (count == 0 || count > extent) return std::nullopt;
  if (coder == 0) return golomb(parameter, bytes, extent, count);
  if (coder == 1) return elias_fano(parameter, bytes, extent, count);
  if (coder == 2) return gap(parameter, bytes, extent, count);
  return std::nullopt;
}

inline float from_pattern(std::uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, 4);
  return value;
}

// IEEE half precision by its definition.
inline double half_value(unsigned code) {
  const unsigned exponent = (code >> 10) & 31u, fraction = code & 1023u;
  const double magnitude = exponent == 0
                               ? std::ldexp(fraction, -24)
                               : std::ldexp(1024.0 + fraction, static_cast<int>(exponent) - 25);
  return code & 0x8000u ? -magnitude : magnitude;
}

inline std::size_t value_size(unsigned coder, std::size_t count) {
  const std::size_t bits[6] = {32, 16, 16, 8, 4, 1}, header[6] = {0, 0, 0, 4, 4, 2};
  return header[coder] + (bits[coder] * count + 7) / 8;
}

inline std::optional<Values> values(unsigned coder, ByteSpan bytes, std::size_t count) {
  if (coder > 5 || count == 0 || bytes.size() != value_size(coder, count)) return std::nullopt;
  BitStream stream{to_bits(bytes)};
  Values out;
  if (coder <= 2) {
    for (std::size_t i = 0; i < count; ++i) {
      const auto pattern = static_cast<std::uint32_t>(stream.number(coder == 0 ? 32 : 16));
      if (coder == 1 && (pattern & 0x7c00u) == 0x7c00u) return std::nullopt;
      out.push_back(coder == 1 ? static_cast<float>(half_value(pattern))
                               : from_pattern(coder == 0 ? pattern : pattern << 16));
      if (!std::isfinite(out.back())) return std::nullopt;
    }
    return out;
  }
  if (coder == 5) {
    const auto mean = static_cast<std::uint32_t>(stream.number(16));
    if (mean == 0 || mean >= 0x7f80u) return std::nullopt;
    for (std::size_t i = 0; i < count; ++i)
      out.push_back(stream.next() ? -from_pattern(mean << 16) : from_pattern(mean << 16));
  } else {
    const std::uint64_t levels = coder == 3 ? 128 : 8;
    const std::uint64_t lo = stream.number(16), hi = stream.number(16);
    if (lo > hi || hi >= 0x7f80u) return std::nullopt;
    const std::uint64_t a = lo * 65536, span = hi * 65536 + 65535 - a + 1;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t level = stream.number(coder == 3 ? 7 : 3);
      const auto bits = static_cast<std::uint32_t>(a + (2 * level + 1) * span / (2 * levels));
      out.push_back(stream.next() ? -from_pattern(bits) : from_pattern(bits));
    }
  }
  if (!stream.clean_end()) return std::nullopt;
  return out;
}

// CRC-32C, bit by bit.
inline std::uint32_t crc(const std::vector<unsigned>& bytes) {
  std::uint32_t state = 0xffffffffu;
  for (const unsigned byte : bytes) {
    state ^= byte;
    for (int bit = 0; bit < 8; ++bit) state = state & 1u ? (state >> 1) ^ 0x82f63b78u : state >> 1;
  }
  return ~state;
}

struct Frame {
  bool skipped = false;
  std::uint64_t elements = 0;
  unsigned value_coder = 0;
  Indices indices;
  Values values;
  std::size_t bytes = 0;
};

// Little-endian number of `size` bytes.
inline std::uint64_t number_at(ByteSpan bytes, std::size_t at, unsigned size) {
  std::uint64_t value = 0;
  for (unsigned i = 0; i < size; ++i) value += std::uint64_t{byte_at(bytes, at + i)} << (8 * i);
  return value;
}

inline std::optional<std::uint64_t> varint(ByteSpan bytes, std::size_t& at) {
  std::uint64_t value = 0;
  for (unsigned i = 0; i < 5; ++i) {
    if (at >= bytes.size()) return std::nullopt;
    const unsigned byte = byte_at(bytes, at++);
    value += std::uint64_t{byte & 127u} << (7 * i);
    if (byte < 128) return i > 0 && byte == 0 ? std::nullopt : std::optional(value);
  }
  return std::nullopt;
}

// The frame at the start of `bytes`, or nothing when it breaks any rule of the document.
inline std::optional<Frame> frame(ByteSpan bytes) {
  if (bytes.size() < 20 || byte_at(bytes, 0) != 't' || byte_at(bytes, 1) != 'w' ||
      byte_at(bytes, 2) != 2 || byte_at(bytes, 4) > 1 || byte_at(bytes, 5) % 8 > 5)
    return std::nullopt;
  Frame out;
  out.skipped = byte_at(bytes, 4) == 1;
  out.value_coder = byte_at(bytes, 5) % 8;
  out.elements = number_at(bytes, 12, 4);
  const std::uint64_t chunk = 1ull << (byte_at(bytes, 5) / 8);
  struct Entry {
    std::uint64_t first, extent, count;
    unsigned coder, parameter;
    std::uint64_t index_bytes;
  };
  std::vector<Entry> entries;
  std::size_t at = 20;
  for (std::uint64_t first = 0; !out.skipped && first < out.elements; first += chunk) {
    const auto head = varint(bytes, at);
    if (!head) return std::nullopt;
    if (*head == 0) continue;
    const std::uint64_t extent = out.elements - first < chunk ? out.elements - first : chunk;
    Entry entry{first, extent, *head / 4, static_cast<unsigned>(*head % 4), 0, 0};
    if (entry.count == 0 || entry.count > extent || at >= bytes.size()) return std::nullopt;
    entry.parameter = byte_at(bytes, at++);
    const auto length = varint(bytes, at);
    if (!length) return std::nullopt;
    entry.index_bytes = *length;
    entries.push_back(entry);
  }
  for (const Entry& entry : entries) {
    const std::size_t value_bytes = value_size(out.value_coder, entry.count);
    if (entry.index_bytes > bytes.size() - at ||
        value_bytes > bytes.size() - at - entry.index_bytes)
      return std::nullopt;
    const auto found = indices(entry.coder, entry.parameter, bytes.subspan(at, entry.index_bytes),
                               entry.extent, entry.count);
    at += entry.index_bytes;
    const auto read = values(out.value_coder, bytes.subspan(at, value_bytes), entry.count);
    at += value_bytes;
    if (!found || !read) return std::nullopt;
    for (const std::uint32_t index : *found)
      out.indices.push_back(static_cast<std::uint32_t>(index + entry.first));
    out.values.insert(out.values.end(), read->begin(), read->end());
  }
  out.bytes = at;
  std::vector<unsigned> covered;
  for (std::size_t i = 0; i < at; ++i)
    if (i < 16 || i >= 20) covered.push_back(byte_at(bytes, i));
  if (crc(covered) != number_at(bytes, 16, 4)) return std::nullopt;
  return out;
}

}  // namespace thinwire::reference
