// sign_nohwy.cc: signs where Highway is not installed.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sign.h"

namespace thinwire {

SignSums sign_scan(const float* g, const float* r, std::size_t count, std::uint8_t* bits) {
  return sign_scan_reference(g, r, count, bits);
}

void sign_settle(const float* g, float* r, std::size_t count, float high, float low) {
  sign_settle_reference(g, r, count, high, low);
}

void sign_add(const std::uint8_t* bits, std::size_t count, float high, float low, float* target) {
  sign_add_reference(bits, count, high, low, target);
}

}  // namespace thinwire
