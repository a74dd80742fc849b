// fuzz_int8.cc: the decoder of int8 blocks agrees with its reference, bit for bit, on any bytes.
// SPDX-License-Identifier: Apache-2.0
#include "fuzz/quantiser_target.h"
#include "thinwire/kernels/int8.h"

// Input: u8 elements, then the payload.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  fuzz::Input input(data, size);
  const std::size_t count = input.take<std::uint8_t>();
  const Int8Rule rule{64, false};
  const auto bytes = fuzz::payload_of(input, int8_bytes(rule, count));
  fuzz::require_agreement(
      count, [&](float* out) { return int8_add(rule, bytes.data(), count, 1, out); },
      [&](float* out) { return int8_add_reference(rule, bytes.data(), count, 1, out); });
  return 0;
}
