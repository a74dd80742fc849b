// agreement.h: are all ranks set up alike? Found before the first step it is a sentence, found later
// a damaged step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "thinwire/comm/group.h"
#include "thinwire/core/view.h"

namespace thinwire {

// Compares buckets (numbers, parameters, shapes) and `settings`, a text of everything else that must
// be the same. Throws an Error that names the first rank that differs from rank 0, and how. A
// collective: all ranks call it.
void check_agreement(Group& group, const std::vector<Bucket>& buckets, const std::string& settings);

// The same for the number of the step (or round, as `what` says) that each rank begins with, which a
// loaded checkpoint sets: schemes whose sums carry no header draw and warm up by it. A collective.
void check_same_step(Group& group, const std::string& what, std::uint64_t step);

}  // namespace thinwire
