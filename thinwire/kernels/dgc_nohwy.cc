// dgc_nohwy.cc: Deep Gradient Compression where Highway is not installed.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/dgc.h"

namespace thinwire {

DgcTally dgc_pass(const DgcRule& rule, const float* g, float* u, float* v, std::size_t count,
                  std::uint32_t first, const Picked& out) {
  return dgc_pass_reference(rule, g, u, v, count, first, out);
}

}  // namespace thinwire
