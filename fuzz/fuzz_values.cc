// fuzz_values.cc: every value decoder agrees with the reference decoder, bit for bit, on any bytes.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "fuzz/fuzz.h"
#include "tests/wire/reference_decoder.h"
#include "thinwire/wire/values.h"

// Input: u8 coder, u8 count, then the coder's bytes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  fuzz::Input input(data, size);
  const unsigned coder = input.take<std::uint8_t>() % 8u;
  std::vector<float> out(input.take<std::uint8_t>());
  const Status status = value_decode(static_cast<ValueCoder>(coder), input.rest(), out);
  const auto expected = reference::values(coder, input.rest(), out.size());
  fuzz::require(status.ok() == expected.has_value(), "decoder and reference accept the same bytes");
  if (!expected) return 0;
  fuzz::require(std::memcmp(out.data(), expected->data(), out.size() * sizeof(float)) == 0,
                "decoder and reference give the same values");
  return 0;
}
