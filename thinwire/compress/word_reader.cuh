// word_reader.cuh: reading bit streams that lie anywhere in aligned words.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace thinwire {

// Reads `bits` bits from bit `start` of aligned words, and zeros behind them: a BitReader of words.
class WordReader {
 public:
  static constexpr unsigned most = 57;

  __device__ WordReader(const std::uint32_t* words, std::uint64_t start, std::uint64_t bits)
      : words_(words), start_(start), bits_(bits) {}

  __device__ std::uint64_t peek() const {
    if (position_ >= bits_) return 0;
    const std::uint64_t at = start_ + position_;
    const std::uint64_t last = (start_ + bits_ - 1) >> 5;
    const std::uint64_t word = at >> 5;
    const unsigned shift = at & 31;
    const std::uint32_t a = words_[word];
    const std::uint32_t b = word < last ? words_[word + 1] : 0;
    const std::uint32_t c = word + 1 < last ? words_[word + 2] : 0;
    const std::uint64_t bits =
        std::uint64_t{__funnelshift_r(b, c, shift)} << 32 | __funnelshift_r(a, b, shift);
    const std::uint64_t left = bits_ - position_;
    return left < 64 ? bits & ((std::uint64_t{1} << left) - 1) : bits;
  }
  __device__ void skip(std::uint64_t count) { position_ += count; }
  __device__ void seek(std::uint64_t position) { position_ = position; }
  __device__ std::uint64_t position() const { return position_; }
  __device__ bool overrun() const { return position_ > bits_; }

 private:
  const std::uint32_t* words_;
  std::uint64_t start_, bits_;
  std::uint64_t position_ = 0;
};

}  // namespace thinwire
