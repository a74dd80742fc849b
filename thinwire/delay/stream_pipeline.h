// stream_pipeline.h: a Pipeline (pipeline.h) for messages in the memory of a device. Encoders and
// decoders run in one stream of its own; collectives in another one (NCCL), or by a thread that
// takes the bytes through pinned memory (Gloo). The host waits in take(), and only for bytes that
// pass through it. On the CPU every call is done when it returns.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/core/options.h"
#include "thinwire/core/state.h"
#include "thinwire/core/verdict.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/exchange.h"
#include "thinwire/exchange/stream_exchange.h"

namespace thinwire {

class StreamPipeline {
 public:
  // At most `depth` rounds are in flight. With `own`, take() also returns this worker's message as
  // others decode it. `side` is the stream of all work; it, and what `link` names, must outlive
  // this object. `at_fault` names the parameter whose update is beyond the limit on this rank.
  StreamPipeline(const StreamLink& link, const std::vector<Bucket>& buckets, const Config& config,
                 std::size_t depth, bool own, const OwnStream& side,
                 std::function<std::string()> at_fault);
  ~StreamPipeline();  // waits for work that is under way
  StreamPipeline(const StreamPipeline&) = delete;
  StreamPipeline& operator=(const StreamPipeline&) = delete;

  // Where the message of the next round is to be, in device memory, by bucket. Earlier work of
  // `side` may still read it.
  float* message(std::size_t bucket);
  // Starts a round with that message. `digests` (one per bucket, in device memory, or null) are
  // sent along: they must be the same on all ranks. For a given round, either all ranks pass
  // digests or none does. `step` is the training step; in the first round, and after a load, it
  // must be the same on all ranks.
  void start(const std::uint64_t* digests, std::uint64_t step);

  // Decodes the oldest rounds that have arrived; throws what went wrong in earlier ones. Never
  // waits.
  void look();
  // Whether take() would not wait.
  bool ready() const;

  // The oldest round that was not taken yet. Its mean is valid for work of `side`, until as many
  // rounds were started as the depth. Where the verdict says that the round is void, so is the
  // mean, and a later call throws.
  struct Taken {
    std::vector<float*> mean, own;  // by bucket, in device memory; own: null without `own`
    const Verdict* verdict = nullptr;
  };
  Taken take();
  std::size_t in_flight() const;

  // As Pipeline's.
  std::unique_lock<std::mutex> hold();
  void await_arrivals();
  // Waits until the device has done all work, and throws what went wrong in any round.
  void settle();
  Report report();
  void visit_state(StateVisitor& visitor);

 private:
  class Engine;
  std::unique_ptr<Engine> engine_;
};

}  // namespace thinwire
