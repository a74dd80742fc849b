// target_hwy.cc: Highway's instruction sets by name.
// SPDX-License-Identifier: Apache-2.0
#include <hwy/highway.h>

#include "thinwire/core/error.h"
#include "thinwire/kernels/target.h"

namespace thinwire {
namespace {

// Computed once, because forcing a target changes what Highway reports as supported.
const std::vector<std::int64_t>& targets() {
  static const std::vector<std::int64_t> all = hwy::SupportedAndGeneratedTargets();
  return all;
}

}  // namespace

std::vector<std::string> kernel_targets() {
  std::vector<std::string> names;
  for (const std::int64_t target : targets()) names.emplace_back(hwy::TargetName(target));
  return names;
}

void force_kernel_target(const std::string& name) {
  const std::vector<std::int64_t>& all = targets();
  if (name.empty()) return hwy::SetSupportedTargetsForTest(0);
  for (const std::int64_t target : all) {
    if (name == hwy::TargetName(target)) return hwy::SetSupportedTargetsForTest(target);
  }
  fail("force_kernel_target: this machine or build has no '", name, "'; see kernel_targets()");
}

}  // namespace thinwire
