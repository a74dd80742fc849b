// replicas.h: checks that all workers still have the same weights. It compares a checksum per
// parameter over all ranks: cheap enough for every hundred steps. An error names the parameter and
// the rank.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "thinwire/comm/group.h"

namespace thinwire {

struct Replica {
  std::string name;
  ConstBytes bytes;
};

// Throws an Error on all ranks when the bytes of a parameter differ between ranks. A collective:
// call it on all ranks, between steps.
void check_replicas(Group& group, std::span<const Replica> parameters);

}  // namespace thinwire
