// index_target.h: the property of every index decoder: it accepts what the reference decoder
// accepts and gives the same indices; and what it accepts with the encoder's own parameter is what
// the encoder writes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "fuzz/fuzz.h"
#include "tests/wire/reference_decoder.h"
#include "thinwire/wire/index.h"

namespace thinwire::fuzz {

// Input: u32 extent, u16 count, u8 parameter, then the coder's bytes.
inline void check_index_decoder(IndexCoder coder, const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const auto extent = std::max<std::uint32_t>(1, input.take<std::uint32_t>());
  const std::size_t count = input.take<std::uint16_t>() % 64;
  const auto parameter = input.take<std::uint8_t>();
  const ConstBytes bytes = input.rest();
  std::vector<std::uint32_t> out(count);
  const Status status = index_decode({coder, parameter, bytes.size()}, bytes, extent, out);
  const auto expected =
      reference::indices(static_cast<unsigned>(coder), parameter, bytes, extent, count);
  require(status.ok() == expected.has_value(), "decoder and reference accept the same bytes");
  if (!expected) return;
  require(out == *expected, "decoder and reference give the same indices");
  std::vector<std::byte> again(index_bound(count, extent));
  const auto choice = static_cast<IndexChoice>(static_cast<unsigned>(coder) + 1);
  const IndexCode code = index_encode(out, extent, choice, again);
  require(code.bytes <= again.size(), "the bound holds");
  require(code.coder != coder || code.parameter != parameter ||
              std::ranges::equal(std::span(again).first(code.bytes), bytes),
          "indices have one spelling for each parameter");
}

}  // namespace thinwire::fuzz
