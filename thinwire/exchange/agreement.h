// agreement.h: are all ranks set up alike? Found before the first step it is a sentence, found later
// a damaged step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "thinwire/comm/group.h"
#include "thinwire/core/view.h"

namespace thinwire {

// Compares buckets (numbers, parameters, shapes) and `settings`, a text of everything else that must
// be the same. Throws an Error that names the first rank that differs from rank 0, and how. A
// collective: all ranks call it.
void check_agreement(Group& group, const std::vector<Bucket>& buckets, const std::string& settings);

}  // namespace thinwire
