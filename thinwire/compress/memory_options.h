// memory_options.h: the options that choose the memory of a scheme.
//
//     memory     none, residual or momentum; schemes that always have momentum lack this option
//     momentum   the factor m
//     nesterov   Nesterov's form of momentum
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "thinwire/core/options.h"
#include "thinwire/kernels/limit.h"

namespace thinwire {

// For schemes that always accumulate momentum (dgc, csc).
std::vector<Option> momentum_options();
MemoryRule read_momentum_options(const Options& options);

// For schemes that combine with every memory. `fallback` is the scheme's default for `memory`.
std::vector<Option> memory_options(const std::string& fallback);
MemoryRule read_memory_options(const Options& options);

}  // namespace thinwire
