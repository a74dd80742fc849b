// target.h: the vector instructions that the kernels use. By default they use the best of the
// machine. Tests force each in turn, and reports name the one in use. Every kernel gives the same
// bits with each of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace thinwire {

// The instruction sets that are compiled in and that this machine has, best first. Without Highway
// it is "reference" alone. Forcing one does not change the list.
std::vector<std::string> kernel_targets();

// Makes all kernels of the process use `name`, one of the above; "" restores the default. Throws
// when this machine has no such target. Do not call it while a kernel runs.
void force_kernel_target(const std::string& name);

}  // namespace thinwire
