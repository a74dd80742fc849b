// checkpoint.h: the state of one rank as a file, FILE.rankR, together with its settings.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/train/crew.h"
#include "thinwire/comm/group.h"
#include "thinwire/core/state.h"

namespace thinwire::train {

// FILE.rankR
std::string checkpoint_file(const std::string& path, int rank);

using Identity = std::vector<std::pair<std::string, std::string>>;  // flag and value

// Writes a rank's state under a name of its own. When every rank has written, publish_checkpoint(),
// a collective, gives the files of this process their names, so that a crash leaves a consistent
// set.
void write_checkpoint(const std::string& path, int rank, State state, const Identity& identity);
void publish_checkpoint(Group& group, const std::string& path, const Crew& crew);

// A rank's state. Throws BadInput when a file is missing or damaged. When the file was saved under
// other settings, the error names the flag and both values.
State load_checkpoint(const std::string& path, int rank, const Identity& identity);

}  // namespace thinwire::train
