// stream_widened.cc: halves in, halves out, f32 between.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/stream_widened.h"

#include <algorithm>
#include <utility>

#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/limit.h"

namespace thinwire {
namespace {

class StreamWidened final : public Compressor {
 public:
  StreamWidened(std::unique_ptr<Compressor> inner, const Bucket& bucket, Device device)
      : inner_(std::move(inner)),
        bucket_(bucket),
        device_(device),
        wide_(place_on(device), bucket.elements() * sizeof(float), device) {}

  int rounds() const override { return inner_->rounds(); }
  bool needs_norm() const override { return inner_->needs_norm(); }
  Leg leg(std::uint64_t step, int round) const override { return inner_->leg(step, round); }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    require_gradient(gradient, bucket_, device_, "bucket " + std::to_string(bucket_.id));
    if (turn.round == 0)
      cast(gradient.dtype, gradient.data, DType::f32, wide_.data(), nullptr, turn);
    return inner_->encode(turn, wide(), out);
  }

  // Where this rank's gradient is still needed it is in place of the average, and returns as it
  // was.
  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    const Status status = inner_->decode(turn, inbox, wide());
    if (status.ok() && turn.round + 1 == rounds())
      cast(DType::f32, wide_.data(), average.dtype, average.data, turn.verdict, turn);
    return status;
  }

  void undo(const Turn&) override { fail("on a device a step ends with conclude()"); }

  void conclude(const Turn& turn, TensorView gradient, float fill) override {
    inner_->conclude(turn, wide(), fill);
    if (device_.kind != Device::Kind::cpu)
      fill_void_cuda(gradient.dtype, gradient.data, gradient.count, fill, turn.verdict,
                     turn.stream);
    else if (turn.verdict->void_step())
      with_element(gradient.dtype, "a step's end", [&](auto element) {
        using E = decltype(element);
        std::fill_n(static_cast<typename E::Stored*>(gradient.data), gradient.count,
                    E::narrow(fill));
      });
  }

  void keep(const Turn& turn) override { inner_->keep(turn); }
  void restore(const Turn& turn) override { inner_->restore(turn); }
  void visit_state(StateVisitor& visitor) override { inner_->visit_state(visitor); }

 private:
  TensorView wide() const { return {wide_.data(), bucket_.elements(), DType::f32, device_}; }

  // A finite average may be infinite as a half: then all ranks skip the step.
  void cast(DType from, const void* x, DType to, void* out, Verdict* verdict,
            const Turn& turn) const {
    if (device_.kind != Device::Kind::cpu)
      cast_cuda(from, x, to, out, bucket_.elements(), 1, verdict, turn.stream);
    else if (!cast_any(from, x, to, out, bucket_.elements(), 1) && verdict != nullptr)
      verdict->skipped = 1;
  }

  std::unique_ptr<Compressor> inner_;
  Bucket bucket_;
  Device device_;
  Buffer wide_;  // the gradient, then the average
};

}  // namespace

std::unique_ptr<Compressor> stream_widened(std::unique_ptr<Compressor> inner, const Bucket& bucket,
                                           Device device) {
  if (bucket.dtype == DType::f32) return inner;
  return std::make_unique<StreamWidened>(std::move(inner), bucket, device);
}

}  // namespace thinwire
