// golomb.cc: choosing a divisor, writing and reading Golomb codes.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/wire/golomb.h"

#include "thinwire/wire/bits.h"

namespace thinwire {
namespace {

// Exact bits of every stride-th gap.
std::uint64_t stride_bits(std::span<const std::uint32_t> indices, std::uint8_t code,
                          std::size_t stride) {
  const Golomb golomb(golomb_divisor(code));
  std::uint64_t bits = golomb.extra_bits(indices[0]);
  for (std::size_t i = stride; i < indices.size(); i += stride)
    bits += golomb.extra_bits(indices[i] - indices[i - 1] - 1);
  return bits + ((indices.size() - 1) / stride + 1) * (1 + golomb.low);
}

}  // namespace

std::uint64_t golomb_bits(std::span<const std::uint32_t> indices, std::uint8_t parameter) {
  return stride_bits(indices, parameter, 1);
}

GolombPlan golomb_plan(std::span<const std::uint32_t> indices, std::uint32_t extent) {
  const auto cost = [indices](std::uint8_t parameter, std::uint64_t stride) {
    return stride_bits(indices, parameter, static_cast<std::size_t>(stride));
  };
  return GolombSearch(indices.size(), extent, cost).run();
}

void golomb_encode(std::span<const std::uint32_t> indices, std::uint8_t parameter, Bytes out) {
  const Golomb golomb(golomb_divisor(parameter));
  BitWriter writer(out);
  std::uint32_t next = 0;  // the smallest index that may come
  for (const std::uint32_t index : indices) {
    const Golomb::Codeword word = golomb.codeword(index - next);
    if (word.zeros + 1 + word.tail_bits <= BitWriter::most) {
      writer.put((word.tail << 1 | 1) << word.zeros,
                 static_cast<unsigned>(word.zeros) + 1 + word.tail_bits);
    } else {
      writer.put_unary(word.zeros);
      writer.put(word.tail, word.tail_bits);
    }
    next = index + 1;
  }
}

Status golomb_decode(std::uint8_t parameter, ConstBytes bytes, std::uint32_t extent,
                     std::span<std::uint32_t> out) {
  const std::uint64_t divisor = golomb_divisor(parameter);
  if (divisor == 0) return {Code::bad_value, "golomb: divisor code is not canonical"};
  const Golomb golomb(divisor);
  BitReader reader(bytes);
  std::uint64_t next = 0;
  for (std::uint32_t& index : out) {
    std::uint64_t gap = 0;
    if (const Status status = golomb_read(reader, golomb, extent, gap); !status.ok()) return status;
    const std::uint64_t value = next + gap;
    if (value >= extent) return {Code::bad_value, "golomb: an index is outside its chunk"};
    index = static_cast<std::uint32_t>(value);
    next = value + 1;
  }
  if (reader.overrun()) return {Code::truncated, "golomb: bytes end inside the indices"};
  if (reader.bytes_used() != bytes.size())
    return {Code::bad_value, "golomb: bytes behind the last index"};
  if (!reader.padding_is_zero()) return {Code::bad_value, "golomb: padding is not zero"};
  return {};
}

}  // namespace thinwire
