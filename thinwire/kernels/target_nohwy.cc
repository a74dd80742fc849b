// target_nohwy.cc: without Highway there is one target, the plain references.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/error.h"
#include "thinwire/kernels/target.h"

namespace thinwire {

std::vector<std::string> kernel_targets() { return {"reference"}; }

void force_kernel_target(const std::string& name) {
  if (!name.empty() && name != "reference") {
    fail("force_kernel_target: '", name, "' needs a build with Highway");
  }
}

}  // namespace thinwire
