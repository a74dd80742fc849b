// fuzz_natural.cc: the decoder of natural compression agrees with its reference on any bytes.
// SPDX-License-Identifier: Apache-2.0
#include "fuzz/quantiser_target.h"
#include "thinwire/kernels/natural.h"

// Input: u8 elements, then the payload.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  fuzz::Input input(data, size);
  const std::size_t count = input.take<std::uint8_t>();
  const auto bytes = fuzz::payload_of(input, count + (count + 7) / 8);
  const std::uint8_t *exponents = bytes.data(), *signs = bytes.data() + count;
  fuzz::require_agreement(
      count, [&](float* out) { return natural_add(exponents, signs, count, 1, out); },
      [&](float* out) { return natural_add_reference(exponents, signs, count, 1, out); });
  return 0;
}
