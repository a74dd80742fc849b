// cyclic.cc: a user's own scheme in one file, loaded by thinwire.load_scheme("cyclic.cc").
//
// In step t every worker sends the elements i with i % stride == t % stride, plus their unsent
// remainders, and keeps the rest. All workers choose the same elements, so no indices are sent and
// the values are simply summed: 32/stride bits per element, whatever the number of workers. An
// element waits at most stride - 1 steps, so the residual stays bounded.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "thinwire/compress/registry.h"
#include "thinwire/kernels/limit.h"

namespace {

using namespace thinwire;

class Cyclic final : public Compressor {
 public:
  Cyclic(std::size_t stride, const Bucket& bucket, const Site& site)
      : stride_(stride), bucket_(bucket), site_(site), residual_(bucket.elements()) {}

  Leg leg(std::uint64_t step, int) const override {
    return {Reduction::sum, DType::f32, count_at(step) * sizeof(float)};
  }

  // A gradient beyond the limit never enters the residual. One NaN tells the other workers.
  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    require_f32_cpu(gradient, residual_.size(), "cyclic");
    sent_.assign(count_at(turn.step), 0.0f);
    sound_ = take_in(gradient.f32());
    if (!sound_) {
      sent_.assign(sent_.size(), std::numeric_limits<float>::quiet_NaN());
    } else {
      for_each(turn.step, [&](std::size_t k, std::size_t i) {
        sent_[k] = residual_[i];
        residual_[i] = 0;
      });
    }
    std::memcpy(out.data(), sent_.data(), out.size());
    return out.size();
  }

  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    std::vector<float> sum(count_at(turn.step));
    std::memcpy(sum.data(), inbox.data.data(), inbox.data.size());
    for (const float value : sum)
      if (!std::isfinite(value)) return {Code::skipped, "a rank's gradient was not finite"};
    const float share = 1.0f / static_cast<float>(site_.world);
    for (float& value : average.f32()) value = 0;
    for_each(turn.step, [&](std::size_t k, std::size_t i) { average.f32()[i] = sum[k] * share; });
    return {};
  }

  void undo(const Turn& turn) override {
    for_each(turn.step, [&](std::size_t k, std::size_t i) {
      if (!std::isnan(sent_[k])) residual_[i] = sent_[k];
    });
  }

  std::optional<bool> sound() const override { return sound_; }

  // This worker's gradient was bad, here or in another bucket, so nothing of it stays.
  void forget(const Turn& turn, TensorView gradient) override {
    undo(turn);
    if (!sound_) return;
    for (std::size_t i = 0; i < gradient.count; ++i) residual_[i] -= gradient.f32()[i];
  }

  void visit_state(StateVisitor& visitor) override {
    visit_by_parameter(visitor, bucket_, "v", residual_, Share::summed);
  }

 private:
  std::size_t first_of(std::uint64_t step) const { return step % stride_; }
  // At least one element, for the NaN of a skipped step: short buckets sometimes send a zero.
  std::size_t count_at(std::uint64_t step) const {
    const std::size_t elements = residual_.size(), first = first_of(step);
    return elements > first ? (elements - first - 1) / stride_ + 1 : 1;
  }

  template <typename Body>
  void for_each(std::uint64_t step, Body body) const {
    for (std::size_t i = first_of(step), k = 0; i < residual_.size(); i += stride_, ++k) body(k, i);
  }

  bool take_in(std::span<const float> gradient) {
    if (!all_within_limit(gradient.data(), gradient.size())) return false;
    for (std::size_t i = 0; i < gradient.size(); ++i) residual_[i] += gradient[i];
    return true;
  }

  std::size_t stride_;
  Bucket bucket_;
  Site site_;
  std::vector<float> residual_, sent_;
  bool sound_ = true;
};

const Scheme cyclic{
    .name = "cyclic",
    .id = 200,
    .paper = "",
    .summary = "Every stride-th element in turn, with a residual for the others.",
    .bits = "32 / stride",
    .reducible = true,
    .biased = true,
    .feedback = true,
    .stochastic = false,
    .momentum = false,
    .options = {{"stride", "4", "one element of so many per step, 1 to 65536"}},
    .variants = {},
    .bytes = nullptr,
    .traffic = 12,
    .unbiased = nullptr,
    .make = [](const Options& options, const Bucket& bucket,
               const Site& site) -> std::unique_ptr<Compressor> {
      const auto stride = static_cast<std::size_t>(options.integer("stride", 1, 65536));
      return std::make_unique<Cyclic>(stride, bucket, site);
    },
};

}  // namespace

extern "C" const thinwire::Scheme* thinwire_scheme() { return &cyclic; }
