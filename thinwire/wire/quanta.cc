// quanta.cc: counts of a block, gaps and signs.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/wire/quanta.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "thinwire/wire/bits.h"
#include "thinwire/wire/golomb_rule.h"

namespace thinwire {
namespace {

// Up to 64 bits of a plane, from byte `at` on.
std::uint64_t plane_word(ConstBytes plane, std::size_t at) {
  std::uint64_t word = 0;
  if (plane.size() - at >= sizeof word) {
    std::memcpy(&word, plane.data() + at, sizeof word);
  } else {
    std::memcpy(&word, plane.data() + at, plane.size() - at);
  }
  return word;
}

std::size_t put_dense(ConstBytes plus, ConstBytes minus, Bytes out) {
  std::copy(minus.begin(), minus.end(), std::copy(plus.begin(), plus.end(), out.begin()));
  return out.size();
}

constexpr Status bad_quanta{Code::bad_value, "quanta: a block that no encoder writes"};

}  // namespace

std::size_t quanta_encode(ConstBytes plus, ConstBytes minus, std::uint32_t count, Bytes out) {
  std::uint32_t sent = 0;
  for (std::size_t at = 0; at < plus.size(); at += 8)
    sent += static_cast<std::uint32_t>(std::popcount(plane_word(plus, at) | plane_word(minus, at)));
  if (sent == 0) return 0;
  const Golomb golomb(quanta_divisor(sent, count));
  const unsigned head = quanta_head_bits(count);
  if (head + std::uint64_t{sent} * (2 + golomb.low) > 8 * std::uint64_t{out.size() - 1})
    return put_dense(plus, minus, out);
  BitWriter writer(out);
  writer.put(sent - 1, head);
  std::uint32_t next = 0;  // the element behind the last one that sends
  for (std::size_t at = 0; at < plus.size(); at += 8) {
    const std::uint64_t negative = plane_word(minus, at);
    for (std::uint64_t word = plane_word(plus, at) | negative; word != 0; word &= word - 1) {
      const unsigned bit = countr_zero(word);
      const auto i = static_cast<std::uint32_t>(8 * at) + bit;
      const Golomb::Codeword code = golomb.codeword(i - next);
      const std::uint64_t tail = code.tail | (negative >> bit & 1) << code.tail_bits;
      if (code.zeros + 2 + code.tail_bits <= BitWriter::most) {
        writer.put((tail << 1 | 1) << code.zeros,
                   static_cast<unsigned>(code.zeros) + 2 + code.tail_bits);
      } else {
        writer.put_unary(code.zeros);
        writer.put(tail, code.tail_bits + 1);
      }
      next = i + 1;
    }
  }
  return writer.bytes() < out.size() ? writer.bytes() : put_dense(plus, minus, out);
}

Status quanta_add_sparse(ConstBytes block, std::uint32_t count, float tau, float* target) {
  if (block.empty()) return {};
  BitReader reader(block);
  const unsigned head = quanta_head_bits(count);
  const auto sent =
      static_cast<std::uint32_t>(reader.peek() & ((std::uint64_t{1} << head) - 1)) + 1;
  reader.skip(head);
  if (sent > count) return bad_quanta;
  const Golomb golomb(quanta_divisor(sent, count));
  std::uint64_t next = 0;
  for (std::uint32_t k = 0; k < sent; ++k) {
    std::uint64_t gap = 0;
    if (const Status status = golomb_read(reader, golomb, count, gap); !status.ok())
      return bad_quanta;
    next += gap;
    if (next >= count) return bad_quanta;
    target[next++] += (reader.peek() & 1) != 0 ? -tau : tau;
    reader.skip(1);
  }
  if (reader.overrun() || reader.bytes_used() != block.size() || !reader.padding_is_zero())
    return bad_quanta;
  return {};
}

bool quanta_dense_is_sound(ConstBytes block, std::uint32_t count) {
  const std::size_t half = quanta_plane_bytes(count);
  const ConstBytes plus = block.first(half), minus = block.subspan(half);
  const auto last = std::to_integer<unsigned>(plus.back() | minus.back());
  if (count % 8 != 0 && last >> count % 8 != 0) return false;
  for (std::size_t at = 0; at < half; at += 8)
    if ((plane_word(plus, at) & plane_word(minus, at)) != 0) return false;
  return true;
}

}  // namespace thinwire
