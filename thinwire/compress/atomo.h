// atomo.h: the codec of atomo, for its tests.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "thinwire/compress/codec.h"

namespace thinwire {

// The chance of each part to be sent: in proportion to its strength, at most 1, `budget` of them
// in expectation (fewer where fewer have any strength). Strengths descend.
std::vector<double> atomo_chances(std::span<const double> strengths, double budget);

std::unique_ptr<Codec> make_atomo_codec(double budget, const Bucket& bucket);

}  // namespace thinwire
