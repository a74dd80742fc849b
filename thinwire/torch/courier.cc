// courier.cc: buckets through an Exchange, and the choice of a courier.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/courier.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/mul.h>

#include <cmath>
#include <cstdint>

#include "thinwire/comm/c10d/device_stream.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/buffer.h"
#include "thinwire/exchange/setup.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/torch/layout.h"
#include "thinwire/torch/virtual_courier.h"

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
    exchange_.submit(static_cast<std::uint16_t>(bucket), view_of(gradient));
  }

  std::optional<bool> finish(float fill) override {
    skipped_ = exchange_.finish().skipped;
    for (at::Tensor& tensor : tensors_) {
      if (skipped_ && fill != 0) tensor.fill_(fill);
      tensor.reset();
    }
    return skipped_;
  }

  bool outcome() override { return skipped_; }

  Report report() override { return exchange_.report(); }
  void visit_state(StateVisitor& visitor) override { exchange_.visit_state(visitor); }

 private:
  std::shared_ptr<Group> group_;
  std::vector<at::Tensor> tensors_;  // outlive the exchange
  Exchange exchange_;
  bool skipped_ = false;
};

bool is_plain(const Config& config, const ExchangeOptions& options) {
  return config.scheme == "dense" && !options.kind.striped();
}

}  // namespace

TensorView view_of(const at::Tensor& gradient) {
  const DType type = gradient_type(gradient.scalar_type()).value();
  return {gradient.data_ptr(), static_cast<std::size_t>(gradient.numel()), type,
          torch_engine::device_of(gradient.device())};
}

// mul_(Scalar) has the factor first, and a kernel that rounds it to the type of a half.
void share_out(const at::Tensor& gradient, int workers) {
  at::Tensor result = gradient;
  at::mul_out(result, gradient, at::native::wrapped_scalar_tensor(1.0 / workers));
}

bool is_finite(const at::Tensor& tensor) {
  const TensorView view = view_of(tensor);
  return std::isfinite(squared_norm(view.dtype, view.data, view.count));
}

void count_dense(Report& report, const at::Tensor& tensor, int workers) {
  const auto bytes = static_cast<std::uint64_t>(tensor.nbytes());
  const auto ranks = static_cast<std::uint64_t>(workers);
  report.payload_bytes += bytes;
  report.dense_bytes += static_cast<std::uint64_t>(tensor.numel()) * sizeof(float);
  report.traffic.sent += 2 * (ranks - 1) * bytes / ranks;
  report.traffic.received += 2 * (ranks - 1) * bytes / ranks;
  report.traffic.collectives += 1;
}

std::unique_ptr<Courier> make_courier(const Connections& connections,
                                      const std::vector<Bucket>& buckets, const Config& config,
                                      const ExchangeOptions& options) {
  if (connections.job) return connections.job->courier(connections, buckets, config, options);
  const bool streams = !connections.device.is_cpu() || connections.streams;
  if (is_plain(config, options))
    return streams ? make_dense_stream_courier(connections, buckets)
                   : make_dense_courier(connections, buckets);
  if (streams) return make_stream_courier(connections, buckets, config, options);
  return std::make_unique<ExchangeCourier>(connections, buckets, config, options);
}

void check_courier(const Connections& connections, const Config& config,
                   const ExchangeOptions& options) {
  Site site{connections.group->rank(), connections.group->size()};
  check_fit(options.kind, config);
  check_fit(options.kind, site.world);
  if (!connections.device.is_cpu()) {
    if (is_plain(config, options)) return;
    site.device = torch_engine::device_of(connections.device);
    const DeviceScope scope(site.device);  // throws where the build has no CUDA
    make_stream_compressors(site, {Bucket::single(0, "probe", 1)}, config, options.kind);
    return;
  }
  make_compressor(config, Bucket::single(0, "probe", 1), site);
}

}  // namespace thinwire::ddp
