// parallel.h: a loop over pieces, on a few threads. Results must not depend on the number of
// threads: a piece writes only what is its own, and whoever joins the pieces does so in their
// order.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

namespace thinwire {

// How many threads a parallel loop of this process may use, the caller included. Starts as
// THINWIRE_THREADS from the environment, else 1: a training process usually keeps its cores busy
// itself. Not while a loop runs.
void set_threads(int threads);
int threads();

// Runs body(0) .. body(pieces - 1), each once, and returns when all are done. The calling thread
// takes part. When another thread's loop already occupies the pool, runs all pieces on the caller.
// body must not throw.
void parallel_for(std::size_t pieces, const std::function<void(std::size_t)>& body);

}  // namespace thinwire
