// fuzz_threshold.cc: decoding a threshold payload never over-reads, and the result is quanta: every
// element is +tau, -tau or nothing.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "fuzz/fuzz.h"
#include "thinwire/compress/threshold_codec.h"
#include "thinwire/core/crc32c.h"

namespace thinwire {
namespace {

constexpr std::size_t head = 1 + 2 * sizeof(float);

void check(const ThresholdCodec& codec, ConstBytes payload, std::size_t first, std::size_t count) {
  std::vector<float> said(count);
  if (!codec.add(payload, 1.0f, said).ok()) return;
  for (std::size_t i = 0; i < count; ++i) {
    float tau = 0;
    const std::size_t segment = count > first && i >= first && first > 0 ? 1 : 0;
    std::memcpy(&tau, payload.data() + 1 + segment * sizeof tau, sizeof tau);
    fuzz::require(said[i] == 0 || std::fabs(said[i]) == tau, "an element is a quantum or nothing");
  }
}

}  // namespace
}  // namespace thinwire

// Input: u8 elements of the first layer, u8 of the second, then the payload. It is tried unchanged,
// and with the checksum of a sparse form repaired.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  fuzz::Input input(data, size);
  const std::size_t first = input.take<std::uint8_t>();
  const std::size_t count = first + input.take<std::uint8_t>();
  const ThresholdCodec codec({.tau = 1},
                             Bucket{0, {{"a", 0, first, {}}, {"b", first, count - first, {}}}});
  check(codec, input.rest(), first, count);
  std::vector<std::byte> repaired(input.rest().begin(), input.rest().end());
  if (repaired.size() < head + frame_header_bytes) return 0;
  const auto frame = std::span(repaired).subspan(head);
  const std::uint32_t crc = crc32c(frame.subspan(20), crc32c(frame.first(16)));
  std::memcpy(frame.data() + 16, &crc, sizeof crc);
  check(codec, repaired, first, count);
  return 0;
}
