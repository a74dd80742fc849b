// courier.h: carries the buckets of a step to the other workers and brings the averages back. Two
// kinds: through an exchange, with any scheme; or, for `dense`, by the all-reduce that DDP itself
// would make, on DDP's process group, so that results are bit-identical to plain DDP. Each has
// three forms: one for gradients on the CPU, one for a device, which only enqueues its work, and
// one for workers that share a process (virtual_courier.h).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "thinwire/comm/group.h"
#include "thinwire/comm/stream_group.h"
#include "thinwire/core/options.h"
#include "thinwire/core/state.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/exchange.h"

namespace thinwire::ddp {

class VirtualJob;

class Courier {
 public:
  virtual ~Courier() = default;

  // Takes each bucket once per step, in order. The tensor holds the average after finish(); on a
  // device, for later work of the stream that is current then.
  virtual void submit(std::size_t bucket, const at::Tensor& gradient) = 0;
  // True if the step is skipped because some rank's gradient was not finite. Tensors then hold
  // `fill` (0 or NaN). Empty if that is not known yet, because a device is still at work.
  virtual std::optional<bool> finish(float fill) = 0;
  // The same, but waits until it is known. Throws what went wrong on the device.
  virtual bool outcome() = 0;

  // The same for the device: 1 where the last finished step is skipped or has failed, else 0. For
  // work of the stream that is current now, before the next step.
  virtual at::Tensor not_taken() const { return {}; }

  // Where its work is enqueued; null on the CPU, and for the current stream.
  virtual Stream stream() const { return {}; }

  // Called between steps, when the outcome of the last one is known.
  virtual Report report() = 0;
  virtual void visit_state(StateVisitor& visitor) = 0;
};

// How a worker reaches the others. Only we use the groups; the process group is DDP's.
struct Connections {
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;
  c10::intrusive_ptr<c10d::Store> store;
  std::shared_ptr<Group> group;
  std::shared_ptr<StreamGroup> data;  // between devices; none: their bytes go over `group`
  std::chrono::milliseconds timeout{};
  c10::Device device{c10::kCPU};    // of the gradients
  bool streams = false;             // for tests: the forms for a device, also on the CPU
  std::shared_ptr<VirtualJob> job;  // of workers that share a process; they have nothing else here
};

// A gradient as an exchange takes it.
TensorView view_of(const at::Tensor& gradient);

// Divides a gradient as DDP does, to the bit: for halves, too, it is multiplied by the reciprocal
// in f32.
void share_out(const at::Tensor& gradient, int workers);

// For `dense`: whether a sum is finite; and counts its bytes, as a ring moves them.
bool is_finite(const at::Tensor& tensor);
void count_dense(Report& report, const at::Tensor& tensor, int workers);

// A collective, like the exchange behind it.
std::unique_ptr<Courier> make_courier(const Connections& connections,
                                      const std::vector<Bucket>& buckets, const Config& config,
                                      const ExchangeOptions& options);

// Throws what make_courier() would throw for this configuration, whatever the buckets are.
void check_courier(const Connections& connections, const Config& config,
                   const ExchangeOptions& options);

std::unique_ptr<Courier> make_dense_courier(const Connections& connections,
                                            const std::vector<Bucket>& buckets);
std::unique_ptr<Courier> make_dense_stream_courier(const Connections& connections,
                                                   const std::vector<Bucket>& buckets);
std::unique_ptr<Courier> make_stream_courier(const Connections& connections,
                                             const std::vector<Bucket>& buckets,
                                             const Config& config, const ExchangeOptions& options);

}  // namespace thinwire::ddp
