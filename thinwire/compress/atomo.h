// atomo.h: the codec of atomo, for its tests.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "thinwire/compress/codec.h"

namespace thinwire {

// The probability that each part is sent: proportional to its strength, at most 1, with a sum of
// `budget` (less where fewer parts have any strength). Strengths must descend.
std::vector<double> atomo_chances(std::span<const double> strengths, double budget);

std::unique_ptr<Codec> make_atomo_codec(double budget, const Bucket& bucket);

}  // namespace thinwire
