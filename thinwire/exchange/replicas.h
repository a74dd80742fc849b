// replicas.h: are the workers' weights still the same? A checksum per parameter, compared over all
// ranks: cheap enough for every hundred steps, and it names the parameter and the rank when
// something went wrong unnoticed.
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

// Throws an Error on all ranks when a parameter's bytes differ between any of them. A collective:
// call it on all ranks, between steps.
void check_replicas(Group& group, std::span<const Replica> parameters);

}  // namespace thinwire
