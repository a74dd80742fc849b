// local.h: ranks as threads of one process, for tests, simulation and embedding. A group of one is
// simply size 1.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "thinwire/comm/group.h"

namespace thinwire {

// `size` groups that talk to each other; give one to each thread. They share their hub, so they may
// be destroyed in any order.
std::vector<std::unique_ptr<Group>> make_local_groups(int size, const GroupOptions& options = {});

// Runs body once per rank, each on its own thread, and joins the threads. After all have ended it
// rethrows the exception of the lowest rank that threw. When a body throws or returns, ranks that
// wait for it fail at once, with its rank and its error, not after the time limit.
void run_local(int size, const std::function<void(Group&)>& body, const GroupOptions& options = {});

}  // namespace thinwire
