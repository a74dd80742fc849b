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

// Throws an Error for an impossible rank, world or port.
void check(const Rendezvous& at);

// Returns when all ranks have joined. Throws an Error that names the missing ranks otherwise.
Joined join(const Rendezvous& at, const GroupOptions& options);

}  // namespace thinwire::torch_engine
