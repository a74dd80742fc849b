// learner.h: the torch half of a process: model, data, forward, backward, evaluation. The rest of
// the trainer sees only flat buffers and numbers, and includes no torch. A process has one worker,
// or all virtual ones: they share the weights and take turns.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/train/device.h"
#include "apps/train/domain.h"
#include "apps/train/settings.h"
#include "thinwire/comm/group.h"
#include "thinwire/core/state.h"
#include "thinwire/core/view.h"

namespace thinwire::train {

class Learner {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Ready = std::function<void(std::uint16_t bucket)>;
  using Phase = std::function<void(const char* name, Time begin, Time end)>;

  // Opens the data, makes the model from the seed, and lays out its parameters in buckets, in the
  // order of rank 0's backward. A collective. Throws BadInput for models and data that cannot be
  // used.
  Learner(const Settings& settings, Group& group, const Hardware& hardware, Seat seat);
  ~Learner();
  Learner(const Learner&) = delete;
  Learner& operator=(const Learner&) = delete;

  // The calls below are about this rank of the crew; at first its first.
  void turn_to(int rank);
  int rank() const;

  Domain domain() const;
  std::uint64_t steps_per_epoch() const;
  const std::vector<Bucket>& buckets() const;
  // Where `seat` says. The model uses them in the default stream of its GPU; other streams must
  // wait for that one, and it for them.
  TensorView weights_view(std::size_t bucket);
  TensorView gradient_view(std::size_t bucket);
  // With a seat on the host only.
  std::span<float> weights(std::size_t bucket);
  std::span<float> gradient(std::size_t bucket);

  struct Computed {
    double loss = 0, seconds = 0;
  };
  // Forward and backward of one step. The gradients are the means over this worker's batch (or
  // batches, with --accumulate); the loss is theirs. `ready` is called once for each bucket, as
  // soon as its gradient is complete (or the GPU has been given the work that completes it) and
  // where `seat` says, while backward continues with the next. If the model lives on a GPU, another
  // thread calls it, but never two at a time. The model computes with these weights.
  // Learners in threads of one process wait for each other here, but not on the clock.
  Computed compute(std::uint64_t step, const Ready& ready, const Phase& phase);

  // A collective: each rank evaluates its share of the test set, whosever turn it is. BatchNorm
  // uses the mean of the workers' running statistics; the workers' own statistics stay unchanged.
  Score evaluate();

  // This rank's BatchNorm statistics.
  void visit_buffers(StateVisitor& visitor);

 private:
  class Torch;
  std::unique_ptr<Torch> torch_;
};

// The models and the kinds of data, one line each.
std::string zoo_help();

}  // namespace thinwire::train
