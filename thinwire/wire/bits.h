// bits.h: bit streams, from the lowest bit of the first byte up. They never access memory outside
// their buffer.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "thinwire/core/bit_count.h"
#include "thinwire/core/cuda.h"
#include "thinwire/core/view.h"

namespace thinwire {

static_assert(std::endian::native == std::endian::little, "bits are stored as little-endian words");

// Writes into `out`. It may overwrite up to seven bytes after the written ones, but nothing outside
// `out`. Bits that do not fit are dropped, and fits() returns false.
class BitWriter {
 public:
  static constexpr unsigned most = 56;  // bits that one put() takes

  THINWIRE_HD explicit BitWriter(Bytes out) : out_(out) {}

  // Appends the low `count` <= most bits of `value`; the bits above them are zero.
  THINWIRE_HD void put(std::uint64_t value, unsigned count) {
    pending_ |= value << filled_;
    filled_ += count;
    store();
    byte_ += filled_ >> 3;
    pending_ >>= filled_ & ~7u;
    filled_ &= 7;
  }

  // Appends `count` zeros and a one.
  THINWIRE_HD void put_unary(std::uint64_t count) {
    for (; count >= most; count -= most) put(0, most);
    put(std::uint64_t{1} << count, static_cast<unsigned>(count) + 1);
  }

  // The number of bytes started so far. The unused bits of the last byte are zero.
  THINWIRE_HD std::size_t bytes() const { return byte_ + (filled_ > 0 ? 1 : 0); }
  THINWIRE_HD bool fits() const { return bytes() <= out_.size(); }

 private:
  THINWIRE_HD void store() {
    if (byte_ >= out_.size()) return;
    const std::size_t room = out_.size() - byte_;
    if (room >= 8) {
      std::memcpy(out_.data() + byte_, &pending_, 8);
    } else {
      std::memcpy(out_.data() + byte_, &pending_, room);
    }
  }

  Bytes out_;
  std::size_t byte_ = 0;
  std::uint64_t pending_ = 0;
  unsigned filled_ = 0;
};

// Reads `bytes`. After their end it reads zeros and overrun() returns true, so a loop may check it
// once, after its last read.
class BitReader {
 public:
  static constexpr unsigned most = 57;  // bits of peek() that are valid

  THINWIRE_HD explicit BitReader(ConstBytes bytes)
      : bytes_(bytes), whole_words_(bytes.size() < 8 ? 0 : bytes.size() - 7) {}

  THINWIRE_HD std::uint64_t peek() const { return load(position_ >> 3) >> (position_ & 7); }
  THINWIRE_HD void skip(std::uint64_t count) { position_ += count; }

  THINWIRE_HD std::uint64_t position() const { return position_; }
  THINWIRE_HD bool overrun() const { return bytes_used() > bytes_.size(); }
  THINWIRE_HD std::size_t bytes_used() const {
    return static_cast<std::size_t>((position_ + 7) >> 3);
  }

  // Whether the unread bits of the current byte are zero.
  THINWIRE_HD bool padding_is_zero() const {
    const unsigned unread = static_cast<unsigned>(-position_ & 7);
    return (peek() & ((std::uint64_t{1} << unread) - 1)) == 0;
  }

 private:
  THINWIRE_HD std::uint64_t load(std::uint64_t byte) const {
    std::uint64_t word = 0;
    if (byte < whole_words_) {
      std::memcpy(&word, bytes_.data() + byte, 8);
    } else if (byte < bytes_.size()) {
      std::memcpy(&word, bytes_.data() + byte, bytes_.size() - byte);
    }
    return word;
  }

  ConstBytes bytes_;
  std::size_t whole_words_;  // from this byte on, fewer than eight bytes are left
  std::uint64_t position_ = 0;
};

// floor(log2(extent / count)) for 1 <= count <= extent: the number of plain low bits at which
// count * (low + 1) + extent / 2^low is smallest.
THINWIRE_HD constexpr unsigned mean_gap_log2(std::uint64_t count, std::uint64_t extent) {
  return bit_width(extent / count) - 1;
}

}  // namespace thinwire
