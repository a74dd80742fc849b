// signum_nohwy.cc: momentum and its signs where Highway is not installed.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/signum.h"

namespace thinwire {

bool signum_pass(float momentum, const float* g, float* m, std::size_t count,
                 std::uint8_t* negative, std::uint8_t* zero) {
  return signum_pass_reference(momentum, g, m, count, negative, zero);
}

}  // namespace thinwire
