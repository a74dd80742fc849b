// checkpoint.h: the state of one worker as a file, FILE.rankR, together with its settings.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "thinwire/comm/group.h"
#include "thinwire/core/state.h"

namespace thinwire::train {

// FILE.rankR
std::string checkpoint_file(const std::string& path, int rank);

using Identity = std::vector<std::pair<std::string, std::string>>;  // flag and value

// A collective. The files get their names only when every rank has written its own, so that a crash
// leaves a consistent set.
void save_checkpoint(Group& group, const std::string& path, State state, const Identity& identity);

// This rank's state. Throws BadInput when a file is missing or damaged. When the file was saved
// under other settings, the error names the flag and both values.
State load_checkpoint(const Group& group, const std::string& path, const Identity& identity);

}  // namespace thinwire::train
