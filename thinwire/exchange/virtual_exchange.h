// virtual_exchange.h: all ranks of a job in one process and on one thread: what N workers would do
// to a model, without N workers. The code is that of an Exchange, and so are the bits: averages,
// memories, skipped steps, reports.
//
//     thinwire::VirtualExchange exchange(8, buckets, thinwire::Config::parse("dgc:density=0.001"));
//     for each step:
//       for each worker, bucket: exchange.submit(worker, bucket, its gradient);  // in any order
//       auto step = exchange.finish();             // worker 0's memory holds the averages
//       if (!step.skipped) optimizer.step();       // one copy of the weights: replicas are alike
//
// Nothing is done N * N times: every rank encodes, but messages are written where all ranks read
// them, a sum is added once, and what all ranks decode alike is decoded once. A step costs little
// more than its N encodes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "thinwire/comm/link.h"
#include "thinwire/compress/compressor.h"
#include "thinwire/core/options.h"
#include "thinwire/core/state.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/exchange.h"

namespace thinwire {

class VirtualExchange {
 public:
  // One configuration for all buckets, or one per bucket. Ranks are the workers, then the servers
  // of exchange server:S. Throws an Error when the scheme and the kind of exchange do not fit each
  // other.
  VirtualExchange(int workers, const std::vector<Bucket>& buckets, const Config& config,
                  const ExchangeOptions& options = {});
  VirtualExchange(int workers, const std::vector<Bucket>& buckets,
                  const std::vector<Config>& configs, const ExchangeOptions& options = {});
  // With your own compressors: `make` returns those of one rank, one per bucket.
  using Make = std::function<std::vector<std::unique_ptr<Compressor>>(const Site& site)>;
  VirtualExchange(int workers, const std::vector<Bucket>& buckets, const Make& make,
                  const ExchangeOptions& options = {});
  ~VirtualExchange();
  VirtualExchange(const VirtualExchange&) = delete;
  VirtualExchange& operator=(const VirtualExchange&) = delete;

  int workers() const;
  int ranks() const;  // workers and servers

  // Records a worker's gradient of a bucket; nothing is encoded before finish(), until which the
  // memory must live. Every worker needs memory of its own. Submit each bucket of each worker once
  // per step. Gradients must be on the CPU for now: on a device use one process per GPU, or copy.
  void submit(int worker, std::uint16_t bucket, TensorView gradient);

  // Runs the step of all ranks on the calling thread. Then worker 0's memory holds the averages,
  // zeros in a skipped step; the memory of the other workers is spent, and its content unspecified.
  // It throws the step's error, which names the rank, after what was sent is back in all memories.
  // No further step is possible then, but states may be saved. A step that is not complete (a
  // bucket is missing, two gradients share memory) is refused before anything is encoded.
  StepResult finish();

  // Between steps only.
  // What that rank's Exchange would report. Traffic is that of c10d (comm/cost.h). Only rank 0
  // spends time on decoding what all ranks decode alike.
  Report report(int rank = 0) const;
  // The entries, names and bits of that rank's Exchange: a checkpoint of N processes can be loaded
  // into N virtual ranks, and back. All ranks must be at the same step when the next one begins.
  void visit_state(int rank, StateVisitor& visitor);

  // The time that the collectives of the last step would take over the link, as messages of c10d,
  // in the order of an Exchange: transmissions queue, and latencies of collectives that are in
  // flight together overlap. Encoding and decoding take no time in it. The link must be steady.
  double seconds_over(const Link& link) const;

 private:
  class Engine;
  std::unique_ptr<Engine> engine_;
};

}  // namespace thinwire
