// verdict.h: what became of a step on a device. Kernels raise its flags in device memory, so that
// the host never waits; the host reads a copy when somebody asks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "thinwire/core/cuda.h"
#include "thinwire/core/status.h"

namespace thinwire {

struct Verdict {
  std::uint32_t unsound = 0;  // not 0: an element of this rank's gradient is beyond the limit
  std::uint32_t skipped = 0;  // not 0: some rank's gradient is, so all ranks skip the step
  std::uint64_t fault = 0;    // the first bad frame as fault_of() packs it; 0: none

  // True when the step is not taken: the memory gets back what it sent.
  THINWIRE_HD bool void_step() const { return skipped != 0 || fault != 0; }
};

// A bad frame: who sent it, for which bucket, and what is wrong. Never 0, because the code is not.
THINWIRE_HD constexpr std::uint64_t fault_of(Code code, std::uint32_t rank, std::uint32_t bucket) {
  return std::uint64_t{rank} << 32 | bucket << 8 | static_cast<std::uint32_t>(code);
}
constexpr Code code_of(std::uint64_t fault) { return static_cast<Code>(fault & 0xff); }
constexpr int rank_of(std::uint64_t fault) { return static_cast<int>(fault >> 32); }
constexpr int bucket_of(std::uint64_t fault) { return static_cast<int>((fault >> 8) & 0xffff); }

}  // namespace thinwire
