// agreement.h: checks that all ranks have the same setup. Before the first step a difference is a
// clear error; later it would be a damaged step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "thinwire/comm/group.h"
#include "thinwire/core/view.h"

namespace thinwire {

// Compares the buckets (numbers, parameters, shapes) and `settings`, a text of all other settings
// that must be the same. Throws an Error that names the first rank that differs from rank 0, and
// the difference. A collective: all ranks call it.
void check_agreement(Group& group, const std::vector<Bucket>& buckets, const std::string& settings);

// The same for the number of the first step (or round, see `what`), which a loaded checkpoint sets.
// Random draws and warm-ups depend on it, and sums carry no header that would show a difference. A
// collective.
void check_same_step(Group& group, const std::string& what, std::uint64_t step);
// The same where the steps of all ranks are known; `rank` is who asks.
void check_same_steps(int rank, const std::string& what, std::span<const std::uint64_t> steps);

}  // namespace thinwire
