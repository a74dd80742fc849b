// threshold_nohwy.cc: threshold quantisation where Highway is not installed.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/threshold.h"

namespace thinwire {

ThresholdTally threshold_pass(float tau, const float* g, float* r, std::size_t count,
                              std::uint8_t* plus, std::uint8_t* minus) {
  return threshold_pass_reference(tau, g, r, count, plus, minus);
}

}  // namespace thinwire
