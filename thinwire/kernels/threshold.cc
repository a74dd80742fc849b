// threshold.cc: threshold quantisation, one element at a time.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/threshold.h"

#include <algorithm>
#include <cmath>

#include "thinwire/kernels/limit.h"

namespace thinwire {

ThresholdTally threshold_pass_reference(float tau, const float* g, float* r, std::size_t count,
                                        std::uint8_t* plus, std::uint8_t* minus) {
  std::fill_n(plus, (count + 7) / 8, std::uint8_t{0});
  std::fill_n(minus, (count + 7) / 8, std::uint8_t{0});
  ThresholdTally tally;
  for (std::size_t i = 0; i < count; ++i) {
    if (!within_limit(g[i])) {
      tally.finite = false;
      continue;
    }
    const auto [rest, sends] = quantum_of(tau, r == nullptr ? g[i] : g[i] + r[i]);
    if (sends != 0) {
      std::uint8_t& byte = (sends > 0 ? plus : minus)[i / 8];
      byte = static_cast<std::uint8_t>(byte | 1u << i % 8);
      ++tally.sent;
    }
    tally.largest = std::max(tally.largest, std::fabs(rest));
    if (r != nullptr) r[i] = rest;
  }
  return tally;
}

}  // namespace thinwire
