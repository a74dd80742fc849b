// fuzz_terngrad.cc: five values per byte: decoder and reference agree on any bytes, and accepted
// bytes pack to the same bytes.
// SPDX-License-Identifier: Apache-2.0
#include "fuzz/quantiser_target.h"
#include "thinwire/kernels/terngrad.h"

// Input: u16 elements, below 1024, then the payload.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  fuzz::Input input(data, size);
  const std::size_t count = input.take<std::uint16_t>() % 1024u;
  const auto bytes = fuzz::payload_of(input, (count + 4) / 5);
  std::vector<std::int16_t> fast(count), slow(count);
  const bool accepted = terngrad_add(bytes.data(), count, fast.data());
  fuzz::require(accepted == terngrad_add_reference(bytes.data(), count, slow.data()),
                "decoder and reference accept the same bytes");
  if (!accepted) return 0;
  fuzz::require(fast == slow, "decoder and reference give the same values");
  const std::vector<std::int8_t> values(fast.begin(), fast.end());
  std::vector<std::uint8_t> again(bytes.size());
  terngrad_pack(values.data(), count, again.data());
  fuzz::require(again == bytes, "a payload has one spelling");
  return 0;
}
