// local.h: ranks as threads of one process: for tests, simulation and embedding. A group of one is
// simply size 1.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "thinwire/comm/group.h"

namespace thinwire {

// `size` groups that talk to each other; hand one to each thread. They share their hub, so may
// outlive each other.
std::vector<std::unique_ptr<Group>> make_local_groups(int size, const GroupOptions& options = {});

// Runs body once per rank, each on a thread of its own, and joins them. The first rank's exception
// (lowest rank that threw) is rethrown after all have ended. When a body throws or returns, others
// that wait for that rank fail at once, with its name and its error, not after the time limit.
void run_local(int size, const std::function<void(Group&)>& body, const GroupOptions& options = {});

}  // namespace thinwire
