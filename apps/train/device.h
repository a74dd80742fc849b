// device.h: what of its machine a worker computes with. No torch here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/train/launch.h"
#include "apps/train/settings.h"

namespace thinwire::train {

struct Hardware {
  int threads = 0;  // of torch; 0 leaves it alone
  int gpu = -1;     // none
};

// The GPU of this worker, when it computes on one or exchanges between them: those of its machine
// are given out in turn. Throws BadInput where there is none.
int gpu_of(const Settings& settings, const Place& place);

// Before workers are started here: throws BadInput when they cannot have what they need.
void check_gpus(const Settings& settings);

}  // namespace thinwire::train
