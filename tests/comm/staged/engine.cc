// engine.cc: test programs on the staging of the c10d engine, without a GPU: Gloo's own collectives
// stand in for NCCL's, the CPU for the device.
// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/engine.h"

#include "tests/comm/c10d/join.h"
#include "thinwire/comm/c10d/staged.h"

namespace thinwire::testing {

std::unique_ptr<Group> make_group(const GroupOptions& options) {
  const auto make = [](const auto&) { return make_gloo_backend(job()); };
  return torch_engine::make_staged_group(job(), options, c10::kCPU, "staged", make);
}

}  // namespace thinwire::testing
