// exchange.h: averages the buckets of a model over the workers, step by step, in the background.
//
//     thinwire::Exchange exchange(group, buckets, thinwire::Config::parse("dgc:density=0.001"));
//     for each step:
//       exchange.submit(0, gradient_of_bucket_0);  // as soon as a bucket's gradients are there,
//       exchange.submit(1, gradient_of_bucket_1);  // in any order
//       auto step = exchange.finish();             // the buckets hold the average, the same bits on all ranks
//       if (!step.skipped) optimizer.step();
//
// One thread of the exchange encodes, issues every collective and decodes. Collectives therefore
// leave each rank in one order: buckets by number, a further round of bucket b right after the
// first of bucket b + 2. That order follows from the bucket numbers alone, never from timing, so
// ranks cannot disagree on it (as they can when second rounds start from completion callbacks).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "thinwire/comm/group.h"
#include "thinwire/compress/compressor.h"
#include "thinwire/core/options.h"
#include "thinwire/core/state.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/kind.h"

namespace thinwire {

// Sums since the exchange was made.
struct Report {
  std::uint64_t steps = 0;
  std::uint64_t skipped = 0;        // steps that a non-finite gradient on some rank made void
  std::uint64_t payload_bytes = 0;  // what this rank's encoders wrote
  std::uint64_t dense_bytes = 0;    // the same gradients as f32
  Traffic traffic;                  // what the engine really moved
  double encode_seconds = 0;
  double wait_seconds = 0;  // waiting for collectives that were not done yet
  double decode_seconds = 0;

  double ratio() const {
    return payload_bytes ? static_cast<double>(dense_bytes) / static_cast<double>(payload_bytes)
                         : 0;
  }
};

struct StepResult {
  std::uint64_t step = 0;
  // Some rank's gradient had a NaN, an Inf or an element beyond the limit (kernels/limit.h): buckets
  // hold zeros. Nothing of the step stays in that rank's memory; the others keep their gradients.
  bool skipped = false;
};

// One thing that the exchange's thread did, for a trace: "encode", "decode", or "exchange", which
// lasts from the start of a collective until the thread had waited for its end.
struct Stage {
  const char* name = "";
  std::uint16_t bucket = 0;
  std::chrono::steady_clock::time_point begin, end;
  std::uint64_t round = 0;  // step of an exchange, message of a delayed average
};
using Observer = std::function<void(const Stage&)>;

struct ExchangeOptions {
  ExchangeKind kind{};  // how compressed bytes meet: auto, split, server
  // Lazy all-reduce: legs that are summed (or maximised) and shorter than this wait for each other
  // and travel as one collective of about this size. 0: each bucket travels alone. Pays where many
  // small buckets meet latency; costs a copy of what is fused, and overlap while it waits. The average
  // has the same bits wherever the engine's sums do not depend on an element's place in a message.
  std::size_t fuse_bytes = 0;

  std::string str() const;  // what the ranks must agree on
};

class Exchange {
 public:
  // All buckets under one configuration, or one per bucket. Throws an Error when scheme and kind of
  // exchange do not fit each other, and one that names the first rank that differs when the ranks do
  // not agree. The group must outlive the exchange and be used by nobody else meanwhile.
  Exchange(Group& group, const std::vector<Bucket>& buckets, const Config& config,
           const ExchangeOptions& options = {});
  Exchange(Group& group, const std::vector<Bucket>& buckets, const std::vector<Config>& configs,
           const ExchangeOptions& options = {});
  // With compressors of your own, one per bucket; `description` is what the ranks must agree on.
  Exchange(Group& group, std::vector<Bucket> buckets,
           std::vector<std::unique_ptr<Compressor>> compressors, const std::string& description,
           const ExchangeOptions& options = {});
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Hands over the gradient of a bucket; on finish() the same memory holds the average. Each bucket
  // once per step. The memory must live until finish() returns, or else longer than the exchange.
  void submit(std::uint16_t bucket, TensorView gradient, Stream stream = {});

  // Waits for all buckets of the step. An error of the step (a damaged frame, a silent rank) is
  // thrown here, after what was sent has been put back into memory; it names the rank and bucket.
  // No further step is possible then, but the state may be saved: it has the gradients of all buckets
  // that were encoded; buffers of those whose turn had not come still hold theirs.
  StepResult finish();

  // On a server rank: takes part in one step of the workers. Call it as often as they take one. A
  // server that wants the averages itself may submit() every bucket instead, where what it hands
  // over is only room for them, and finish().
  StepResult serve();

  // Between steps only.
  Report report() const;
  // `observer` is called on the exchange's thread, after each stage; it must not throw. An empty one
  // ends it.
  void observe(Observer observer);
  void visit_state(StateVisitor& visitor);

 private:
  class Engine;
  std::unique_ptr<Engine> engine_;
};

}  // namespace thinwire
