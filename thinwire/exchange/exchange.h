// exchange.h: averages the buckets of a model over the workers, step by step, in the background.
//
//     thinwire::Exchange exchange(group, buckets, thinwire::Config::parse("dgc:density=0.001"));
//     for each step:
//       exchange.submit(0, gradient_of_bucket_0);  // as soon as a bucket's gradients are there,
//       exchange.submit(1, gradient_of_bucket_1);  // in any order
//       auto step = exchange.finish();             // the buckets hold the average on all ranks
//       if (!step.skipped) optimizer.step();
//
// The averages are bit-identical on all ranks. One thread of the exchange encodes, issues every
// collective and decodes. So every rank issues collectives in the same order: buckets by number, a
// further round of bucket b right after the first round of bucket b + 2. That order depends only on
// the bucket numbers, never on timing, so ranks cannot disagree on it (as they can when second
// rounds start from completion callbacks).
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

// Totals since the exchange was created.
struct Report {
  std::uint64_t steps = 0;
  std::uint64_t skipped = 0;        // steps skipped because some rank's gradient was not finite
  std::uint64_t payload_bytes = 0;  // bytes that this rank's encoders wrote
  std::uint64_t dense_bytes = 0;    // bytes of the same gradients as f32
  Traffic traffic;                  // bytes that the engine moved
  double encode_seconds = 0;
  double wait_seconds = 0;  // time spent waiting for collectives
  double decode_seconds = 0;

  double ratio() const {
    return payload_bytes ? static_cast<double>(dense_bytes) / static_cast<double>(payload_bytes)
                         : 0;
  }
};

struct StepResult {
  std::uint64_t step = 0;
  // Some rank's gradient had a NaN, an Inf or an element beyond the limit (kernels/limit.h). The
  // buckets hold zeros. That rank's memory keeps nothing of the step; other ranks' memories keep
  // their gradients.
  bool skipped = false;
};

// One stage of the exchange's thread, for a trace: "encode", "decode", or "exchange", which lasts
// from the start of a collective until the thread has waited for its end.
struct Stage {
  const char* name = "";
  std::uint16_t bucket = 0;
  std::chrono::steady_clock::time_point begin, end;
  std::uint64_t round = 0;  // the step of an exchange, or the message of a delayed average
};
using Observer = std::function<void(const Stage&)>;

struct ExchangeOptions {
  ExchangeKind kind{};  // how compressed gradients are combined: auto, split, server
  // Lazy all-reduce: sums and maxima shorter than this wait for each other and are sent as one
  // collective of about this size. With 0 each bucket is sent alone. It helps where many small
  // buckets meet a high latency. It costs a copy of the fused bytes, and overlap while they wait.
  // The average has the same bits if the engine's sums do not depend on an element's position in a
  // message.
  std::size_t fuse_bytes = 0;

  std::string str() const;  // the settings that must be the same on all ranks
};

class Exchange {
 public:
  // One configuration for all buckets, or one per bucket. Throws an Error when the scheme and the
  // kind of exchange do not fit each other, and one that names the first rank that differs when the
  // ranks do not agree. The group must outlive the exchange, and nobody else may use it meanwhile.
  Exchange(Group& group, const std::vector<Bucket>& buckets, const Config& config,
           const ExchangeOptions& options = {});
  Exchange(Group& group, const std::vector<Bucket>& buckets, const std::vector<Config>& configs,
           const ExchangeOptions& options = {});
  // With your own compressors, one per bucket. All ranks must have the same `description`.
  Exchange(Group& group, std::vector<Bucket> buckets,
           std::vector<std::unique_ptr<Compressor>> compressors, const std::string& description,
           const ExchangeOptions& options = {});
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // Submits the gradient of a bucket; after finish() the same memory holds the average. Submit each
  // bucket once per step. The memory must live until finish() returns, or longer than the exchange.
  void submit(std::uint16_t bucket, TensorView gradient, Stream stream = {});

  // Waits for all buckets of the step. It throws the step's error (a damaged frame, a silent rank),
  // which names the rank and the bucket, after what was sent is back in the memory. No further step
  // is possible then, but the state may be saved: it contains the gradients of all encoded buckets;
  // the buffers of the other buckets still hold their gradients.
  StepResult finish();

  // On a server rank: takes part in one step of the workers. Call it once per step. A server that
  // needs the averages may instead submit() memory for every bucket and call finish().
  StepResult serve();

  // Between steps only.
  Report report() const;
  // The exchange's thread calls `observer` after each stage. It must not throw. Pass an empty one
  // to stop.
  void observe(Observer observer);
  void visit_state(StateVisitor& visitor);

 private:
  class Engine;
  std::unique_ptr<Engine> engine_;
};

}  // namespace thinwire
