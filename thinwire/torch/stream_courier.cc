// stream_courier.cc: buckets on a device through a StreamExchange. The streams that DDP computes in
// and the exchange's own wait for each other by events; the host waits for neither.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <cstdint>

#include "thinwire/comm/c10d/device_stream.h"
#include "thinwire/exchange/stream_exchange.h"
#include "thinwire/torch/courier.h"

namespace thinwire::ddp {
namespace {

class StreamCourier final : public Courier {
 public:
  StreamCourier(const Connections& connections, const std::vector<Bucket>& buckets,
                const Config& config, const ExchangeOptions& options)
      : group_(connections.group),
        data_(connections.data),
        device_(connections.device),
        tensors_(buckets.size()),
        exchange_({*group_, data_.get(), torch_engine::device_of(connections.device),
                   connections.timeout},
                  buckets, config, options),
        ours_(torch_engine::torch_stream(connections.device, exchange_.stream())),
        passed_(connections.device.type()) {}

  void submit(std::size_t bucket, const at::Tensor& gradient) override {
    const c10::Stream now = torch_engine::current_stream(device_);
    order(now, ours_);
    // When DDP lets a bucket go, its memory must not be used again while our stream works on it.
    const bool same = tensors_[bucket].defined() && tensors_[bucket].is_alias_of(gradient);
    if (!same && !device_.is_cpu()) gradient.record_stream(ours_);
    tensors_[bucket] = gradient;
    exchange_.submit(static_cast<std::uint16_t>(bucket), view_of(gradient), exchange_.stream());
  }

  std::optional<bool> finish(float fill) override {
    exchange_.finish(exchange_.stream(), fill);
    order(ours_, torch_engine::current_stream(device_));
    return std::nullopt;
  }

  bool outcome() override { return exchange_.outcome().skipped; }

  // A verdict is four words of 32 bits: the first alone does not void a step.
  at::Tensor not_taken() const override {
    static_assert(sizeof(Verdict) == 16 && offsetof(Verdict, skipped) == 4);
    auto* const words = const_cast<Verdict*>(exchange_.verdict());
    const auto options = at::TensorOptions().dtype(at::kInt).device(device_);
    return at::from_blob(words, {4}, options).narrow(0, 1, 3).ne(0).any().to(at::kFloat);
  }

  Stream stream() const override { return exchange_.stream(); }

  Report report() override { return exchange_.report(); }
  void visit_state(StateVisitor& visitor) override { exchange_.visit_state(visitor); }

 private:
  // Later work in `to` runs after the work that is in `from` now.
  void order(const c10::Stream& from, const c10::Stream& to) {
    if (device_.is_cpu()) return;
    passed_.record(from);
    passed_.block(to);
  }

  std::shared_ptr<Group> group_;
  std::shared_ptr<StreamGroup> data_;
  c10::Device device_;
  std::vector<at::Tensor> tensors_;  // of the last step; outlive the exchange
  StreamExchange exchange_;
  c10::Stream ours_;
  c10::Event
      passed_;  // recorded anew each time; a stream waits for the last record before its call
};

}  // namespace

std::unique_ptr<Courier> make_stream_courier(const Connections& connections,
                                             const std::vector<Bucket>& buckets,
                                             const Config& config, const ExchangeOptions& options) {
  return std::make_unique<StreamCourier>(connections, buckets, config, options);
}

}  // namespace thinwire::ddp
