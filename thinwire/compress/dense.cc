// dense.cc: no compression: an f32 all-reduce in place. It is the baseline of all other schemes.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/schemes.h"
#include "thinwire/kernels/average.h"

namespace thinwire {
namespace {

class DenseCompressor final : public Compressor {
 public:
  DenseCompressor(const Bucket& bucket, const Site& site) : bucket_(bucket), site_(site) {}

  Leg leg(std::uint64_t, int) const override {
    return {Reduction::sum, DType::f32, bucket_.elements() * sizeof(float), true};
  }

  std::size_t encode(const Turn&, TensorView gradient, Bytes out) override {
    require_f32_cpu(gradient, bucket_.elements(), "dense, bucket " + std::to_string(bucket_.id));
    return out.size();
  }

  Status decode(const Turn&, const Inbox&, TensorView average) override {
    const float share = 1.0f / static_cast<float>(site_.world);
    if (scale_finite(static_cast<float*>(average.data), average.count, share)) return {};
    return {Code::skipped, "a rank's gradient was not finite"};
  }

  void undo(const Turn&) override {}
  void visit_state(StateVisitor&) override {}

 private:
  Bucket bucket_;
  Site site_;
};

}  // namespace

const Scheme& dense_scheme() {
  static const Scheme scheme{
      .name = "dense",
      .id = 1,
      .paper = "",
      .summary = "f32 through an all-reduce.",
      .bits = "32",
      .reducible = true,
      .biased = false,
      .feedback = false,
      .stochastic = false,
      .momentum = false,
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
