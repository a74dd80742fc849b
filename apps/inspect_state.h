// inspect_state.h: the part of `thinwire inspect` that looks at a checkpoint.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "thinwire/core/view.h"

namespace thinwire::apps {

// Whether these bytes begin like a checkpoint (docs/wire_format.md).
bool is_state(ConstBytes bytes);

// Prints what a checkpoint holds, and writes it when `json` names a file. Throws BadInput if the
// checkpoint is damaged.
void inspect_state(const std::string& path, ConstBytes bytes, const std::string& json);

}  // namespace thinwire::apps
