// elias_fano.cc: low bits first, then, from a byte's start, the bitmap: bit (index >> low) + rank
// is set.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/wire/elias_fano.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "thinwire/wire/bits.h"

namespace thinwire {
namespace {

std::size_t low_bytes(std::size_t count, unsigned low) {
  return static_cast<std::size_t>(elias_fano_low_bytes(count, low));
}

// The next up to 64 bits of the bitmap.
std::uint64_t bitmap_word(ConstBytes bitmap, std::size_t byte) {
  std::uint64_t word = 0;
  std::memcpy(&word, bitmap.data() + byte, std::min<std::size_t>(8, bitmap.size() - byte));
  return word;
}

// Turns set bits into indices, in order, and checks each.
class Gatherer {
 public:
  Gatherer(unsigned low, ConstBytes low_part, std::uint32_t extent, std::span<std::uint32_t> out)
      : low_(low),
        mask_((std::uint64_t{1} << low) - 1),
        last_high_((extent - 1) >> low),
        extent_(extent),
        lows_(low_part),
        out_(out) {}

  // Takes the set bit at `position`; false when that makes no valid index.
  bool take(std::uint64_t position) {
    if (rank_ == out_.size()) return false;
    const std::uint64_t high = position - rank_;
    if (high > last_high_) return false;
    const std::uint64_t index = (high << low_) | (lows_.peek() & mask_);
    lows_.skip(low_);
    if (index < next_ || index >= extent_) return false;
    out_[rank_++] = static_cast<std::uint32_t>(index);
    next_ = index + 1;
    last_position_ = position;
    return true;
  }

  bool complete() const { return rank_ == out_.size(); }
  std::uint64_t last_position() const { return last_position_; }
  bool padding_is_zero() const { return lows_.padding_is_zero(); }

 private:
  unsigned low_;
  std::uint64_t mask_, last_high_, extent_;
  BitReader lows_;
  std::span<std::uint32_t> out_;
  std::size_t rank_ = 0;
  std::uint64_t next_ = 0;  // the smallest index that may come
  std::uint64_t last_position_ = 0;
};

}  // namespace

void elias_fano_encode(std::span<const std::uint32_t> indices, std::uint8_t low, Bytes out) {
  const std::size_t split = low_bytes(indices.size(), low);
  const std::uint64_t mask = (std::uint64_t{1} << low) - 1;
  BitWriter lows(out.first(split));
  for (const std::uint32_t index : indices) lows.put(index & mask, low);
  BitWriter highs(out.subspan(split));
  std::uint32_t previous = 0;
  for (const std::uint32_t index : indices) {
    highs.put_unary((index >> low) - previous);
    previous = index >> low;
  }
}

Status elias_fano_decode(std::uint8_t low, ConstBytes bytes, std::uint32_t extent,
                         std::span<std::uint32_t> out) {
  if (low > most_low_bits) return {Code::bad_value, "elias-fano: more than 31 low bits"};
  const std::size_t split = low_bytes(out.size(), low);
  if (bytes.size() < split) return {Code::truncated, "elias-fano: bytes end inside the low bits"};
  const ConstBytes bitmap = bytes.subspan(split);
  Gatherer gatherer(low, bytes.first(split), extent, out);
  for (std::size_t byte = 0; byte < bitmap.size(); byte += 8) {
    for (std::uint64_t word = bitmap_word(bitmap, byte); word != 0; word &= word - 1) {
      const auto bit = static_cast<std::uint64_t>(std::countr_zero(word));
      if (!gatherer.take(std::uint64_t{byte} * 8 + bit))
        return {Code::bad_value, "elias-fano: an index is out of order or outside its chunk"};
    }
  }
  if (!gatherer.complete()) return {Code::truncated, "elias-fano: bitmap has too few indices"};
  if (gatherer.last_position() / 8 + 1 != bitmap.size())
    return {Code::bad_value, "elias-fano: bytes behind the last index"};
  if (!gatherer.padding_is_zero()) return {Code::bad_value, "elias-fano: padding is not zero"};
  return {};
}

}  // namespace thinwire
