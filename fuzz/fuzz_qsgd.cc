// fuzz_qsgd.cc: the decoder of packed QSGD agrees with its reference, bit for bit, on any bytes.
// SPDX-License-Identifier: Apache-2.0
#include "fuzz/quantiser_target.h"
#include "thinwire/kernels/qsgd.h"

// Input: u8 bits of a level, u8 elements, then the payload.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  fuzz::Input input(data, size);
  const QsgdRule rule{64, input.take<std::uint8_t>() % 8u + 1, false};
  const std::size_t count = input.take<std::uint8_t>();
  const auto bytes = fuzz::payload_of(input, qsgd_bytes(rule, count));
  fuzz::require_agreement(
      count, [&](float* out) { return qsgd_add(rule, bytes.data(), count, 1, out); },
      [&](float* out) { return qsgd_add_reference(rule, bytes.data(), count, 1, out); });
  return 0;
}
