// dense.cc: no compression: an all-reduce in place, in the type of the gradients. It is the
// baseline of all other schemes. Sums of f16 and bf16 could overflow where their average does not,
// so these are divided by the number of workers before the sum, f32 after it.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/schemes.h"
#include "thinwire/kernels/average.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/limit.h"

namespace thinwire {
namespace {

class DenseCompressor final : public Compressor {
 public:
  DenseCompressor(const Bucket& bucket, const Site& site) : bucket_(bucket), site_(site) {}

  Leg leg(std::uint64_t, int) const override {
    return {Reduction::sum, bucket_.dtype, bucket_.elements() * size_of(bucket_.dtype), true};
  }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    require_gradient(gradient, bucket_, site_.device,
                     "dense, bucket " + std::to_string(bucket_.id));
    if (half()) (void)scale(turn, gradient, share(), nullptr);
    return out.size();
  }

  Status decode(const Turn& turn, const Inbox&, TensorView average) override {
    if (scale(turn, average, half() ? 1.0f : share(), turn.verdict)) return {};
    return {Code::skipped, "a rank's gradient was not finite"};
  }

  bool learns(int) const override { return false; }
  void undo(const Turn&) override {}
  void conclude(const Turn& turn, TensorView gradient, float fill) override {
    fill_void_cuda(gradient.dtype, gradient.data, gradient.count, fill, turn.verdict, turn.stream);
  }
  void visit_state(StateVisitor&) override {}

 private:
  bool half() const { return bucket_.dtype != DType::f32; }
  float share() const { return 1.0f / static_cast<float>(site_.world); }

  // Returns whether every product is finite; on a device the verdict gets that instead.
  bool scale(const Turn& turn, TensorView x, float factor, Verdict* verdict) const {
    if (x.device.kind == Device::Kind::cuda) {
      cast_cuda(x.dtype, x.data, x.dtype, x.data, x.count, factor, verdict, turn.stream);
      return true;
    }
    if (half()) return cast_any(x.dtype, x.data, x.dtype, x.data, x.count, factor);
    return scale_finite(static_cast<float*>(x.data), x.count, factor);
  }

  Bucket bucket_;
  Site site_;
};

}  // namespace

const Scheme& dense_scheme() {
  static const Scheme scheme{
      .name = "dense",
      .id = 1,
      .paper = "",
      .summary = "The gradient as it is, through an all-reduce.",
      .bits = "32",
      .reducible = true,
      .biased = false,
      .feedback = false,
      .stochastic = false,
      .momentum = false,
      .cuda = true,
      .halves = true,
      .options = {},
      .variants = {},
      .bytes = [](const Options&, const Bucket& bucket) { return bucket.elements() * 4; },
      .traffic = 0,
      .make = [](const Options&, const Bucket& bucket,
                 const Site& site) -> std::unique_ptr<Compressor> {
        return std::make_unique<DenseCompressor>(bucket, site);
      },
  };
  return scheme;
}

}  // namespace thinwire
