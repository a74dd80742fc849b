// device.h: the hardware that a worker uses. No torch here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "apps/train/launch.h"
#include "apps/train/settings.h"

namespace thinwire::train {

struct Hardware {
  int threads = 0;  // torch's threads; 0: torch's default
  int gpu = -1;     // -1: none
};

// Where exchange and optimizer work: on the host, or where the model is, in streams.
enum class Seat { host, model };
Seat seat_of(const Settings& settings);
// Why a GPU's gradients are compressed on the host, as a clause; empty if they are not.
std::string why_on_host(const Settings& settings);

// The GPU of this worker, if it computes on one or exchanges between GPUs. A machine's GPUs are
// assigned round-robin. Throws BadInput if there is none.
int gpu_of(const Settings& settings, const Place& place);

// Call before starting workers here. Throws BadInput when they cannot have the GPUs that they need.
void check_gpus(const Settings& settings);

}  // namespace thinwire::train
