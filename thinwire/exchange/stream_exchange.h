// stream_exchange.h: an Exchange for gradients in the memory of a CUDA device. Nothing waits for
// the device: submit() and finish() enqueue work and return, and what became of a step is read
// later.
//
//     thinwire::StreamExchange exchange({group, &nccl, device}, buckets, config);
//     for each step:
//       exchange.submit(0, gradient_of_bucket_0, stream);  // in any order, from one thread
//       exchange.submit(1, gradient_of_bucket_1, stream);
//       exchange.finish(stream);   // later work of `stream` sees the averages
//       ...
//       exchange.outcome();        // waits for the step: was it skipped? Throws its error.
//
// Encoders and decoders run in a stream of the exchange's own, collectives in another. Collectives
// are issued by bucket number, in the order of an Exchange; a bucket submitted early waits for its
// turn. Over a Group of the host (Gloo) bytes pass through pinned memory, and finish() waits for
// the collectives; second rounds start there.
//
// With a device of kind cpu it runs the compressors of the CPU (exchange/as_device.h), and
// everything is done at once: the same code, tested on machines without a GPU.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "thinwire/comm/group.h"
#include "thinwire/comm/stream_group.h"
#include "thinwire/exchange/exchange.h"

namespace thinwire {

// How the ranks of a StreamExchange reach each other. The groups must outlive the exchange, and
// nobody else may use them meanwhile.
struct StreamLink {
  Group& group;                 // for agreements; it carries the gradients, too, without `data`
  StreamGroup* data = nullptr;  // carries gradients from device to device
  Device device = {};           // where the gradients are
  // outcome() fails after this time. It names the rank that is silent, if `group` can.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

class StreamExchange {
 public:
  // One configuration for all buckets. Throws an Error for a scheme that does not run on the
  // device, or does not fit the kind of exchange, and one that names the first rank that differs
  // when the ranks do not agree.
  StreamExchange(const StreamLink& link, const std::vector<Bucket>& buckets, const Config& config,
                 const ExchangeOptions& options = {});
  // With your own compressors, which keep the contract of a device. All ranks must have the same
  // `description`.
  StreamExchange(const StreamLink& link, std::vector<Bucket> buckets,
                 std::vector<std::unique_ptr<Compressor>> compressors,
                 const std::string& description, const ExchangeOptions& options = {});
  ~StreamExchange();  // waits for work that is under way
  StreamExchange(const StreamExchange&) = delete;
  StreamExchange& operator=(const StreamExchange&) = delete;

  // The stream in which the exchange works. A caller that has ordered it after the gradients by
  // itself may hand it to submit().
  Stream stream() const;

  // The verdict of the last step, in device memory: of a finished step from its end until the next
  // step begins, for work that is ordered between the two.
  const Verdict* verdict() const;

  // Submits the gradient of a bucket, which `stream` computes. The memory must stay in place until
  // `stream`, or another one that finish() held back, has passed the end of the step. A server
  // (exchange server:S) submits memory in which it gets the averages.
  void submit(std::uint16_t bucket, TensorView gradient, Stream stream);

  // Ends the step: later work of `stream` runs after it, and finds the averages, or `fill` (0 or
  // NaN) in all buckets of a skipped step. Throws what went wrong on the host; damage that the
  // device finds is thrown by outcome(), or by the next call that knows of it.
  void finish(Stream stream, float fill = 0);

  // What became of the last finished step. Waits for it. A step that failed is not taken: what was
  // sent is back in the memory. No further step is possible then, but the state may be saved.
  StepResult outcome();
  // The same, without waiting: nothing while the device is still at work.
  std::optional<StepResult> result();

  // Between steps only. Both wait for the last step.
  Report report();
  void visit_state(StateVisitor& visitor);

 private:
  class Engine;
  std::unique_ptr<Engine> engine_;
};

}  // namespace thinwire
