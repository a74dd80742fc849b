// late.h: the delayed average behind a DelayedAttachment. Two kinds: for parameters on the CPU, and
// for a device, which only enqueues its work in the current stream. Parameters and moments come in
// the order of the buckets.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

#include "thinwire/core/options.h"
#include "thinwire/core/state.h"
#include "thinwire/core/view.h"
#include "thinwire/delay/options.h"
#include "thinwire/exchange/exchange.h"
#include "thinwire/torch/courier.h"

namespace thinwire::ddp {

// By parameter; undefined if the optimizer has none yet.
using Moments = std::vector<at::Tensor>;

class Late {
 public:
  virtual ~Late() = default;

  // 1 where an element of some gradient is not finite, else 0: a number on their device.
  virtual at::Tensor unsound(const std::vector<at::Tensor>& gradients) const = 0;
  // Before the first step: a bucket's weights, flat, as they were at attach or load.
  virtual at::Tensor weights(std::size_t bucket) const = 0;
  // The anchor of a bucket, flat, for work that is done before the next call. On the device.
  virtual at::Tensor anchor(std::size_t bucket) = 0;

  // A step is about to be taken.
  virtual void expect_step() {}
  virtual void fill(const Moments& moments) = 0;
  virtual void finish_step(const Moments& moments) = 0;
  virtual void drain(const Moments& moments) = 0;
  virtual void show_anchor() = 0;
  virtual void hide_anchor() = 0;
  virtual void visit_state(StateVisitor& visitor, const Moments& moments) = 0;

  virtual std::unique_lock<std::mutex> hold() = 0;
  // Where its work is enqueued, besides the current stream; null on the CPU.
  virtual Stream stream() const { return {}; }
  virtual std::uint64_t steps() const = 0;
  virtual std::uint64_t delay() const = 0;
  virtual std::uint64_t in_flight() const = 0;
  // On a device it waits for the encoders.
  virtual Report report() = 0;
};

// `moments` are empty without moments to average. Collectives.
std::unique_ptr<Late> make_late(const Connections& connections, const std::vector<Bucket>& buckets,
                                const std::vector<at::Tensor>& parameters, const Moments& moments,
                                const Config& config, const DelayOptions& options);
std::unique_ptr<Late> make_stream_late(const Connections& connections,
                                       const std::vector<Bucket>& buckets,
                                       const std::vector<at::Tensor>& parameters,
                                       const Moments& moments, const Config& config,
                                       const DelayOptions& options);

}  // namespace thinwire::ddp
