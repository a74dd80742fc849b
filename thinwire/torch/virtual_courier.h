// virtual_courier.h: couriers among workers that share a process and a thread. Each worker has an
// Attachment with a courier of its own; behind the couriers is one exchange of all workers, which
// runs when the first of them is asked for the end of the step. `dense` adds as DDP's all-reduce
// does over Gloo, so that here, too, its results are bit-identical to plain DDP.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "thinwire/comm/link.h"
#include "thinwire/torch/courier.h"

namespace thinwire::ddp {

class VirtualRound;

// Where the couriers of a simulation find each other.
class VirtualJob {
 public:
  // The courier of one worker. All workers ask in the same step, in turn; who asks again begins a
  // new exchange.
  std::unique_ptr<Courier> courier(const Connections& worker, const std::vector<Bucket>& buckets,
                                   const Config& config, const ExchangeOptions& options);

  // Whether every worker's memory gets the averages of the coming step. Worker 0's does anyway.
  void spread(bool on) { spread_ = on; }

  // As VirtualExchange::seconds_over(): the collectives of the last step.
  double seconds_over(const Link& link) const;

 private:
  bool spread_ = false;
  std::shared_ptr<VirtualRound> round_;  // of the couriers made last
};

// The group of one worker of a simulation, for what is asked at the start. All are set up by one
// call, so the others say what this one says.
std::shared_ptr<Group> make_virtual_group(int worker, int workers);

}  // namespace thinwire::ddp
