// as_device.cc: returned values become words in memory.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/as_device.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "thinwire/compress/registry.h"
#include "thinwire/core/element.h"
#include "thinwire/exchange/stripe_state.h"
#include "thinwire/exchange/through_host.h"
#include "thinwire/kernels/norm.h"

namespace thinwire {
namespace {

class AsDevice final : public Compressor {
 public:
  AsDevice(std::unique_ptr<Compressor> inner, std::uint16_t bucket)
      : inner_(std::move(inner)), bucket_(bucket) {}

  int rounds() const override { return inner_->rounds(); }
  bool needs_norm() const override { return inner_->needs_norm(); }
  Leg leg(std::uint64_t step, int round) const override { return inner_->leg(step, round); }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    const Leg leg = inner_->leg(turn.step, turn.round);
    if (turn.round == 0) begin(turn, gradient);
    // An Exchange leaves further rounds of a void step out. Here the message of one says nothing.
    const std::size_t bytes =
        void_ ? silence(leg, out) : inner_->encode(inner(turn), gradient, out);
    if (leg.reduction == Reduction::gather) *turn.written = bytes;
    if (leg.reduction == Reduction::scatter) std::ranges::copy(inner_->piece_sizes(), turn.written);
    if (turn.round == 0 && !inner_->sound().value_or(true)) turn.verdict->unsound = 1;
    return leg.bytes;
  }

  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    if (turn.round > 0 && void_) return {};
    std::vector<std::byte> spare;
    const bool last = turn.round + 1 == rounds();
    if (last && turn.verdict->unsound != 0 && !inner_->leg(turn.step, turn.round).in_place) {
      spare.resize(average.count * size_of(average.dtype));
      average.data = spare.data();
    }
    const Status status = inner_->decode(inner(turn), inbox, average);
    void_ = !status.ok();
    if (status.code == Code::skipped) {
      turn.verdict->skipped = 1;
    } else if (void_ && turn.verdict->fault == 0) {
      const auto rank = static_cast<std::uint32_t>(std::max(0, inbox.culprit));
      turn.verdict->fault = fault_of(status.code, rank, bucket_);
    }
    return {};
  }

  // Later rounds must know of a void one.
  bool learns(int round) const override { return round + 1 < rounds() || inner_->learns(round); }

  void undo(const Turn& turn) override { inner_->undo(turn); }

  void conclude(const Turn& turn, TensorView gradient, float fill) override {
    if (!turn.verdict->void_step()) return;
    if (turn.verdict->unsound != 0)
      inner_->forget(turn, gradient);
    else
      inner_->undo(turn);
    fill_with(gradient, fill);
  }

  void keep(const Turn&) override {
    before_.take([this](StateVisitor& visitor) { inner_->visit_state(visitor); });
  }
  void restore(const Turn& turn) override {
    if (turn.verdict->void_step())
      before_.put_back([this](StateVisitor& visitor) { inner_->visit_state(visitor); });
  }

  void visit_state(StateVisitor& visitor) override { inner_->visit_state(visitor); }

 private:
  // A scheme without memory does not look. The memories of other buckets must know.
  void begin(const Turn& turn, TensorView gradient) {
    void_ = false;
    if (!inner_->sound().has_value() && !is_finite(gradient)) turn.verdict->unsound = 1;
  }

  static std::size_t silence(const Leg& leg, Bytes out) {
    if (leg.reduction == Reduction::gather) return 0;
    std::ranges::fill(out, std::byte{0});
    return out.size();
  }

  static bool is_finite(TensorView gradient) {
    return std::isfinite(squared_norm(gradient.dtype, gradient.data, gradient.count));
  }

  static void fill_with(const TensorView& gradient, float value) {
    with_element(gradient.dtype, "a step's end", [&](auto element) {
      using E = decltype(element);
      std::fill_n(static_cast<typename E::Stored*>(gradient.data), gradient.count,
                  E::narrow(value));
    });
  }

  Turn inner(const Turn& turn) const {
    return {turn.step, turn.round, {}, turn.norm ? *turn.norm : 0};
  }

  std::unique_ptr<Compressor> inner_;
  std::uint32_t bucket_;
  bool void_ = false;  // this bucket's step was found void in an earlier round
  Snapshot before_;
};

}  // namespace

std::unique_ptr<Compressor> as_device(std::unique_ptr<Compressor> compressor,
                                      std::uint16_t bucket) {
  return std::make_unique<AsDevice>(std::move(compressor), bucket);
}

std::unique_ptr<Compressor> make_on_device(const Config& config, const Bucket& bucket,
                                           const Site& site) {
  if (site.device.kind == Device::Kind::cpu)
    return as_device(make_compressor(config, bucket, site), bucket.id);
  if (why_on_host(config).empty()) return make_compressor(config, bucket, site);
  Site host = site;
  host.device = {};
  return through_host(make_compressor(config, bucket, host), bucket, site.device);
}

}  // namespace thinwire
