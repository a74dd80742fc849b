// replay_nocuda.cc: a torch without CUDA records nothing.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/replay.h"

namespace thinwire::train {

std::unique_ptr<Replay> record(const std::function<void()>&) { return nullptr; }

}  // namespace thinwire::train
