// target.h: which vector instructions the kernels use. They pick the best of the machine by
// themselves; tests force each in turn, and reports name the one in use. Every kernel gives the
// same bits with each.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace thinwire {

// The instruction sets that are compiled in and that this machine has, best first; "reference"
// alone where Highway is missing. Also while one is forced.
std::vector<std::string> kernel_targets();

// Makes all kernels of the process use `name`, one of the above; "" gives the choice back. Throws
// when this machine has no such target. Not while a kernel runs.
void force_kernel_target(const std::string& name);

}  // namespace thinwire
