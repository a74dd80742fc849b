// courier.cc: buckets through an Exchange.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/courier.h"

#include <cstdint>

namespace thinwire::ddp {
namespace {

class ExchangeCourier final : public Courier {
 public:
  ExchangeCourier(const Connections& connections, const std::vector<Bucket>& buckets,
                  const Config& config, const ExchangeOptions& options)
      : group_(connections.group), exchange_(*group_, buckets, config, options) {
    tensors_.resize(buckets.size());
  }

  void submit(std::size_t bucket, const at::Tensor& gradient) override {
    tensors_[bucket] = gradient;  // the exchange's thread works on it, whoever else lets it go
    const auto count = static_cast<std::size_t>(gradient.numel());
    exchange_.submit(static_cast<std::uint16_t>(bucket),
                     std::span(gradient.data_ptr<float>(), count));
  }

  bool finish() override {
    const bool skipped = exchange_.finish().skipped;
    for (at::Tensor& tensor : tensors_) tensor.reset();
    return skipped;
  }

  Report report() const override { return exchange_.report(); }
  void visit_state(StateVisitor& visitor) override { exchange_.visit_state(visitor); }

 private:
  std::shared_ptr<Group> group_;
  std::vector<at::Tensor> tensors_;  // outlive the exchange
  Exchange exchange_;
};

}  // namespace

std::unique_ptr<Courier> make_courier(const Connections& connections,
                                      const std::vector<Bucket>& buckets, const Config& config,
                                      const ExchangeOptions& options) {
  if (config.scheme == "dense" && !options.kind.striped())
    return make_dense_courier(connections, buckets);
  return std::make_unique<ExchangeCourier>(connections, buckets, config, options);
}

}  // namespace thinwire::ddp
