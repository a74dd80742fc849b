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

void repair(Bytes bytes) {
  if (bytes.size() < 4) return;
  const std::uint32_t crc = crc32c(bytes.first(bytes.size() - 4));
  std::memcpy(bytes.last(4).data(), &crc, sizeof crc);
}

}  // namespace
}  // namespace thinwire

// Input: a state file.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  thinwire::fuzz::check_repaired(data, size, thinwire::check, thinwire::repair);
  return 0;
}
