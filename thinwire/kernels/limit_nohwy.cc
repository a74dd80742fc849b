// limit_nohwy.cc: the limit of a gradient where Highway is not installed.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/limit.h"

namespace thinwire {

bool all_within_limit(const float* x, std::size_t count) {
  return all_within_limit_reference(x, count);
}

}  // namespace thinwire
