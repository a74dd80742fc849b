// virtual_courier.cc: one exchange behind the couriers of all workers.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/virtual_courier.h"

#include <algorithm>
#include <set>
#include <utility>

#include "thinwire/comm/cost.h"
#include "thinwire/comm/reduce.h"
#include "thinwire/comm/verbs.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/virtual_exchange.h"
#include "thinwire/torch/layout.h"

namespace thinwire::ddp {

// The steps of one cut and one scheme. Couriers hand in tensors; nothing runs before the first of
// them is asked for the end.
class VirtualRound {
 public:
  VirtualRound(int workers, std::size_t buckets)
      : tensors_(static_cast<std::size_t>(workers), std::vector<at::Tensor>(buckets)) {}
  virtual ~VirtualRound() = default;
  VirtualRound(const VirtualRound&) = delete;
  VirtualRound& operator=(const VirtualRound&) = delete;

  // False if that worker has a courier of this round already.
  bool seat(int worker) { return seated_.insert(worker).second; }

  void submit(int worker, std::size_t bucket, const at::Tensor& gradient) {
    tensors_[place(worker)][bucket] = gradient;
  }

  // Each worker calls it once per step.
  bool finish(float fill, bool spread) {
    if (ended_ == 0) {
      skipped_ = run();
      if (skipped_ && fill != 0)
        for (at::Tensor& tensor : tensors_[0]) tensor.fill_(fill);
      if (spread) hand_out();
      for (auto& tensors : tensors_) std::ranges::fill(tensors, at::Tensor());
    }
    ended_ = (ended_ + 1) % tensors_.size();
    return skipped_;
  }

  virtual Report report(int worker) const = 0;
  virtual void visit_state(int worker, StateVisitor& visitor) = 0;
  virtual double seconds_over(const Link& link) const = 0;

 protected:
  static std::size_t place(int worker) { return static_cast<std::size_t>(worker); }
  int workers() const { return static_cast<int>(tensors_.size()); }

  // Worker 0's tensors get the averages. Returns whether the step is skipped.
  virtual bool run() = 0;

  std::vector<std::vector<at::Tensor>> tensors_;  // of this step, by worker and bucket

 private:
  void hand_out() {
    for (std::size_t w = 1; w < tensors_.size(); ++w)
      for (std::size_t b = 0; b < tensors_[w].size(); ++b) tensors_[w][b].copy_(tensors_[0][b]);
  }

  std::set<int> seated_;   // the workers that have a courier
  std::size_t ended_ = 0;  // the workers that have ended the last step
  bool skipped_ = false;
};

namespace {

class VirtualExchangeRound final : public VirtualRound {
 public:
  VirtualExchangeRound(int workers, const std::vector<Bucket>& buckets, const Config& config,
                       const ExchangeOptions& options)
      : VirtualRound(workers, buckets.size()), exchange_(workers, buckets, config, options) {}

  Report report(int worker) const override { return exchange_.report(worker); }
  void visit_state(int worker, StateVisitor& visitor) override {
    exchange_.visit_state(worker, visitor);
  }
  double seconds_over(const Link& link) const override { return exchange_.seconds_over(link); }

 private:
  bool run() override {
    for (int worker = 0; worker < workers(); ++worker)
      for (std::size_t b = 0; b < tensors_[0].size(); ++b)
        exchange_.submit(worker, static_cast<std::uint16_t>(b),
                         view_of(tensors_[place(worker)][b]));
    return exchange_.finish().skipped;
  }

  VirtualExchange exchange_;
};

Bytes bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Adds as Gloo's ring does: part p of the buffer in the order of workers p - 1, p - 2, ..., p. The
// parts are whole segments of at most a megabyte, at least two of them. The sum is in parts[0].
void sum_as_gloo(const std::vector<Bytes>& parts, DType dtype) {
  constexpr std::size_t segment_most = 1 << 20, block = 1 << 16;  // a block stays in the cache
  const std::size_t n = parts.size(), total = parts[0].size();
  if (n == 1 || total == 0) return;
  const std::size_t segments =
      round_up(std::max((total + segment_most - 1) / segment_most, 2 * n), n);
  const std::size_t segment = round_up((total + segments - 1) / segments, size_of(dtype));
  const std::size_t longest = segments / n * segment;
  for (std::size_t p = 0; p < n; ++p) {
    const std::size_t end = std::min(total, (p + 1) * longest);
    for (std::size_t at = p * longest; at < end; at += block) {
      const std::size_t length = std::min(block, end - at);
      const Bytes sum = parts[(p + n - 1) % n].subspan(at, length);
      for (std::size_t back = 2; back <= n; ++back)
        reduce_into(sum, parts[(p + n - back + n) % n].subspan(at, length), dtype, ReduceOp::sum);
      if (p != 1) std::ranges::copy(sum, parts[0].subspan(at).begin());
    }
  }
}

class VirtualDenseRound final : public VirtualRound {
 public:
  VirtualDenseRound(int workers, const std::vector<Bucket>& buckets)
      : VirtualRound(workers, buckets.size()), steps_(place(workers)) {}

  Report report(int) const override { return report_; }
  void visit_state(int worker, StateVisitor& visitor) override {
    visitor.number("exchange/step", steps_[place(worker)], Share::replicated);
  }

  // All of them are in flight together.
  double seconds_over(const Link& link) const override {
    double free = 0, end = 0;
    for (const Cost& cost : costs_) {
      free += link.wire_seconds(cost.path);
      end = std::max(end, free + link.seconds(cost) - link.wire_seconds(cost.path));
    }
    return end;
  }

 private:
  bool run() override {
    bool skipped = false;
    costs_.clear();
    for (std::size_t b = 0; b < tensors_[0].size(); ++b) {
      const at::Tensor& average = tensors_[0][b];
      const DType dtype = gradient_type(average.scalar_type()).value();
      std::vector<Bytes> parts;
      for (auto& tensors : tensors_) {
        share_out(tensors[b], workers());
        parts.push_back(bytes_of(tensors[b]));
      }
      sum_as_gloo(parts, dtype);
      skipped = skipped || !is_finite(average);
      count_dense(report_, average, workers());
      const Call call{.kind = Kind::all_reduce, .bytes = parts[0].size(), .dtype = dtype};
      costs_.push_back(c10d_cost(call, {}, 0, workers()));
    }
    if (skipped)
      for (at::Tensor& average : tensors_[0]) average.zero_();
    report_.steps += 1;
    report_.skipped += skipped ? 1 : 0;
    for (double& step : steps_) step += 1;
    return skipped;
  }

  Report report_;
  std::vector<double> steps_;  // by worker
  std::vector<Cost> costs_;    // of the last step, by bucket
};

class VirtualCourier final : public Courier {
 public:
  VirtualCourier(int worker, std::shared_ptr<VirtualRound> round, const bool& spread)
      : worker_(worker), round_(std::move(round)), spread_(spread) {}

  void submit(std::size_t bucket, const at::Tensor& gradient) override {
    round_->submit(worker_, bucket, gradient);
  }
  std::optional<bool> finish(float fill) override {
    return skipped_ = round_->finish(fill, spread_);
  }
  bool outcome() override { return skipped_; }
  Report report() override { return round_->report(worker_); }
  void visit_state(StateVisitor& visitor) override { round_->visit_state(worker_, visitor); }

 private:
  int worker_;
  std::shared_ptr<VirtualRound> round_;
  const bool& spread_;  // of the job, which the attachment's connections hold
  bool skipped_ = false;
};

class VirtualGroup final : public EngineGroup {
 public:
  VirtualGroup(int worker, int workers) : worker_(worker), workers_(workers) {}

  int rank() const override { return worker_; }
  int size() const override { return workers_; }
  std::string name() const override { return "virtual"; }
  Traffic traffic() const override { return {}; }

 private:
  Pending start(const Call& call, const Operands& operands) override {
    if (call.kind != Kind::all_gather)
      fail("worker ", worker_, ": ", call.str(), ": a simulation has no such collective");
    for (std::size_t r = 0; r < operands.sizes.size(); ++r) {
      std::ranges::copy(operands.mine, operands.data.subspan(r * call.bytes).begin());
      operands.sizes[r] = operands.mine.size();
    }
    return {};
  }

  int worker_, workers_;
};

}  // namespace

std::unique_ptr<Courier> VirtualJob::courier(const Connections& worker,
                                             const std::vector<Bucket>& buckets,
                                             const Config& config, const ExchangeOptions& options) {
  const int rank = worker.group->rank(), workers = worker.group->size();
  if (!round_ || !round_->seat(rank)) {
    if (config.scheme == "dense" && !options.kind.striped())
      round_ = std::make_shared<VirtualDenseRound>(workers, buckets);
    else
      round_ = std::make_shared<VirtualExchangeRound>(workers, buckets, config, options);
    round_->seat(rank);
  }
  return std::make_unique<VirtualCourier>(rank, round_, spread_);
}

double VirtualJob::seconds_over(const Link& link) const {
  return round_ ? round_->seconds_over(link) : 0;
}

std::shared_ptr<Group> make_virtual_group(int worker, int workers) {
  return std::make_shared<VirtualGroup>(worker, workers);
}

}  // namespace thinwire::ddp
