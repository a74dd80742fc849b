// engine.cc: test programs on the c10d engine, over Gloo.
// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/engine.h"

#include "tests/comm/c10d/join.h"

namespace thinwire::testing {

std::unique_ptr<Group> make_group(const GroupOptions& options) {
  return make_gloo_group(job(), options);
}

}  // namespace thinwire::testing
