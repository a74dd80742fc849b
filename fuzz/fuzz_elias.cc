// fuzz_elias.cc: decoding Elias-coded levels never over-reads, and accepted streams are canonical.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "fuzz/fuzz.h"
#include "thinwire/wire/elias.h"

// Input: u8 bits of a level, u16 elements, below 1024, then the stream.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  fuzz::Input input(data, size);
  const unsigned bits = input.take<std::uint8_t>() % 8u + 1;
  const std::size_t count = input.take<std::uint16_t>() % 1024u;
  const std::vector<std::byte> bytes(input.rest().begin(), input.rest().end());
  std::vector<std::uint8_t> levels(count), signs((count + 7) / 8);
  std::size_t used = 0;
  if (!elias_decode(bytes, count, (1u << bits) - 1, levels.data(), signs.data(), used).ok())
    return 0;
  fuzz::require(used <= bytes.size(), "the stream lies inside the bytes");
  std::vector<std::byte> again(elias_bound(count, bits));
  const std::size_t length = elias_encode(levels.data(), signs.data(), count, again);
  fuzz::require(
      length == used && std::equal(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(used),
                                   again.begin()),
      "levels have one spelling");
  return 0;
}
