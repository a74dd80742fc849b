// join.h: the workers of a job find each other. Internal to the engine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/comm/c10d/c10d.h"
#include "thinwire/comm/c10d/world.h"

namespace thinwire::torch_engine {

struct Joined {
  JobStore job_store;
  c10::intrusive_ptr<c10d::Backend> backend;  // Gloo, for messages
};

// Throws an Error for a rank, a world or a port that cannot be.
void check(const Rendezvous& at);

// Returns when all are there; else throws an Error that names those who did not come.
Joined join(const Rendezvous& at, const GroupOptions& options);

}  // namespace thinwire::torch_engine
