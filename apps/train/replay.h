// replay.h: work of a GPU that is recorded once and then played again. A pass of a small model is
// hundreds of short kernels: to start them one by one takes longer than to run them, and one of
// them leaves most of the GPU idle. So each recording has a stream of its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

namespace thinwire::train {

class Replay {
 public:
  virtual ~Replay() = default;
  // In its own stream, behind what the current stream has now: what `before` enqueues, then the
  // recorded work.
  virtual void start(const std::function<void()>& before) = 0;
  // The current stream waits for it.
  virtual void join() = 0;
};

// Records what `work` enqueues; nothing of it runs yet. The work must not wait for the device, and
// its tensors must stay where they are. Null if this torch has no CUDA, or if less than half of the
// GPU's memory is free: a recording keeps its own.
std::unique_ptr<Replay> record(const std::function<void()>& work);

}  // namespace thinwire::train
