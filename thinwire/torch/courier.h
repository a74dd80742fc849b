// courier.h: carries the buckets of a step to the other workers and brings the averages back. Two
// kinds: through an Exchange, with any scheme; or, for `dense`, by the all-reduce that DDP itself
// would make, on DDP's process group, so that results are bit-identical to plain DDP.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "thinwire/comm/group.h"
#include "thinwire/core/options.h"
#include "thinwire/core/state.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/exchange.h"

namespace thinwire::ddp {

class Courier {
 public:
  virtual ~Courier() = default;

  // Each bucket once per step, in order; the tensor holds the average after finish().
  virtual void submit(std::size_t bucket, const at::Tensor& gradient) = 0;
  // True when the step is skipped: a gradient of some rank was not finite. Tensors hold zeros then.
  virtual bool finish() = 0;

  // Between steps.
  virtual Report report() const = 0;
  virtual void visit_state(StateVisitor& visitor) = 0;
};

// How a worker reaches the others. The group is ours alone, the process group is DDP's.
struct Connections {
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  c10::intrusive_ptr<c10d::Store> store;
  std::shared_ptr<Group> group;
};

// A collective, like the Exchange behind it.
std::unique_ptr<Courier> make_courier(const Connections& connections,
                                      const std::vector<Bucket>& buckets, const Config& config,
                                      const ExchangeOptions& options);

std::unique_ptr<Courier> make_dense_courier(const Connections& connections,
                                            const std::vector<Bucket>& buckets);

}  // namespace thinwire::ddp
