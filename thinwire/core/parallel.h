// parallel.h: a parallel loop over pieces of work. Results must not depend on the number of
// threads: each piece writes only its own results, and the caller combines the pieces in order.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

namespace thinwire {

// The number of threads that a parallel loop may use, including the caller. The default is
// THINWIRE_THREADS from the environment, else 1, because training usually keeps all cores busy. Do
// not call set_threads() while a loop runs.
void set_threads(int threads);
int threads();

// Runs body(0) .. body(pieces - 1), each once, and returns when all are done. The calling thread
// runs pieces too; it runs all of them when another loop occupies the pool. `body` must not throw.
void parallel_for(std::size_t pieces, const std::function<void(std::size_t)>& body);

}  // namespace thinwire
