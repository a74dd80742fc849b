// norm_nohwy.cc: the squared norm where Highway is not installed.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/norm.h"

namespace thinwire {

double squared_norm(const float* x, std::size_t count) { return squared_norm_reference(x, count); }

}  // namespace thinwire
