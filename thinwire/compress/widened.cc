// widened.cc: halves in, halves out, f32 between.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/widened.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "thinwire/kernels/cast.h"

namespace thinwire {
namespace {

class Widened final : public Compressor {
 public:
  Widened(std::unique_ptr<Compressor> inner, const Bucket& bucket)
      : inner_(std::move(inner)),
        bucket_(bucket),
        who_("bucket " + std::to_string(bucket.id)),
        wide_(bucket.elements()) {}

  int rounds() const override { return inner_->rounds(); }
  bool in_turn() const override { return inner_->in_turn(); }
  bool needs_norm() const override { return inner_->needs_norm(); }
  bool learns(int round) const override { return inner_->learns(round); }
  std::optional<bool> sound() const override { return inner_->sound(); }
  std::span<const std::size_t> piece_sizes() const override { return inner_->piece_sizes(); }

  // A collective in the gradient's own memory would be one of halves.
  Leg leg(std::uint64_t step, int round) const override {
    Leg leg = inner_->leg(step, round);
    leg.in_place = false;
    return leg;
  }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    widen(gradient);
    if (!in_place(turn)) return inner_->encode(turn, wide_, out);
    const std::size_t bytes = inner_->encode(turn, wide_, wide_bytes());
    std::ranges::copy(wide_bytes(), out.begin());
    return bytes;
  }

  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    require_gradient(average, bucket_, {}, who_);
    if (in_place(turn)) std::ranges::copy(inbox.data, wide_bytes().begin());
    const Status status = inner_->decode(turn, inbox, wide_);
    if (!status.ok() || turn.round + 1 < rounds() || !turn.wanted || narrow(average)) return status;
    return {Code::skipped, "the average is too large for the type of the gradients"};
  }

  void undo(const Turn& turn) override { inner_->undo(turn); }

  void forget(const Turn& turn, TensorView gradient) override {
    widen(gradient);
    inner_->forget(turn, wide_);
  }

  void visit_state(StateVisitor& visitor) override { inner_->visit_state(visitor); }

 private:
  bool in_place(const Turn& turn) const { return inner_->leg(turn.step, turn.round).in_place; }
  bool half() const { return bucket_.dtype == DType::f16; }
  Bytes wide_bytes() { return std::as_writable_bytes(std::span(wide_)); }

  // Returns whether all elements are finite.
  bool widen(const TensorView& gradient) {
    require_gradient(gradient, bucket_, {}, who_);
    const auto cast = half() ? cast_from_f16 : cast_from_bf16;
    return cast(static_cast<const std::uint16_t*>(gradient.data), wide_.data(), wide_.size(), 1);
  }

  // Returns whether all elements fit: finite floats may be infinite as halves.
  bool narrow(const TensorView& average) {
    const auto cast = half() ? cast_to_f16 : cast_to_bf16;
    cast(wide_.data(), static_cast<std::uint16_t*>(average.data), wide_.size(), 1);
    return widen(average);
  }

  std::unique_ptr<Compressor> inner_;
  Bucket bucket_;
  std::string who_;          // for errors
  std::vector<float> wide_;  // during a call: the gradient, or the average
};

}  // namespace

Bucket widened(Bucket bucket) {
  bucket.dtype = DType::f32;
  return bucket;
}

std::unique_ptr<Compressor> widened(std::unique_ptr<Compressor> inner, const Bucket& bucket) {
  if (bucket.dtype == DType::f32) return inner;
  return std::make_unique<Widened>(std::move(inner), bucket);
}

}  // namespace thinwire
