// signum.cc: momentum and its signs, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/signum.h"

#include <algorithm>

namespace thinwire {

bool signum_pass_reference(float momentum, const float* g, float* m, std::size_t count,
                           std::uint8_t* negative, std::uint8_t* zero) {
  std::fill_n(negative, (count + 7) / 8, std::uint8_t{0});
  std::fill_n(zero, (count + 7) / 8, std::uint8_t{0});
  bool finite = true;
  for (std::size_t i = 0; i < count; ++i) {
    finite = finite && within_limit(g[i]);
    m[i] = signum_next(momentum, g[i], m[i]);
    const unsigned bit = 1u << i % 8;
    if (m[i] < 0) negative[i / 8] = static_cast<std::uint8_t>(negative[i / 8] | bit);
    if (m[i] == 0) zero[i / 8] = static_cast<std::uint8_t>(zero[i / 8] | bit);
  }
  return finite;
}

}  // namespace thinwire
