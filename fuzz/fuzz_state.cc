// fuzz_state.cc: a state that deserializes serializes to the same bytes.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "fuzz/fuzz.h"
#include "thinwire/core/crc32c.h"
#include "thinwire/core/state.h"

namespace thinwire {
namespace {

void check(ConstBytes bytes) {
  State state;
  if (!deserialize(bytes, state).ok()) return;
  fuzz::require(std::ranges::equal(serialize(state), bytes), "a state has one spelling");
}

}  // namespace
}  // namespace thinwire

// Input: a state file. It is tried as it is, and with its checksum repaired.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  const ConstBytes bytes = std::as_bytes(std::span(data, size));
  check(bytes);
  if (size < 4) return 0;
  std::vector<std::byte> repaired(bytes.begin(), bytes.end());
  const std::uint32_t crc = crc32c(bytes.first(size - 4));
  std::memcpy(repaired.data() + size - 4, &crc, sizeof crc);
  check(repaired);
  return 0;
}
