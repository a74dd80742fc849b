// engine.h: the engine that a program of several processes is linked with: engine.cc of mpi, c10d,
// staged or nccl. So one program tests all engines.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "thinwire/comm/group.h"

namespace thinwire::testing {

// The group of all ranks that launch.py started. All ranks must call it; several groups may exist.
std::unique_ptr<Group> make_group(const GroupOptions& options = {});

// A whole main(): a group and the body. An exception from the body is printed and ends the program
// with an error.
int run_ranks(int argc, char** argv, const std::function<int(Group&)>& body,
              const GroupOptions& options = {});

}  // namespace thinwire::testing
