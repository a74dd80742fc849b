// cast.cc: fp16 and bf16: half the bytes, summed in that type. Gradients are divided by the number
// of workers before they are rounded, so that the sum cannot overflow where the average does not.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/cast.h"
#include "thinwire/compress/schemes.h"
#include "thinwire/kernels/limit.h"

namespace thinwire {
namespace {

class CastCompressor final : public Compressor {
 public:
  CastCompressor(DType dtype, const Bucket& bucket, const Site& site)
      : dtype_(dtype), bucket_(bucket), site_(site) {}

  Leg leg(std::uint64_t, int) const override {
    return {Reduction::sum, dtype_, bucket_.elements() * size_of(dtype_)};
  }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    require_gradient(gradient, bucket_, site_.device,
                     std::string(name_of(dtype_)) + ", bucket " + std::to_string(bucket_.id));
    const float share = 1.0f / static_cast<float>(site_.world);
    if (on_device()) {
      cast_cuda(bucket_.dtype, gradient.data, dtype_, out.data(), gradient.count, share, nullptr,
                turn.stream);
    } else if (bucket_.dtype == DType::f32) {
      const auto cast = dtype_ == DType::f16 ? cast_to_f16 : cast_to_bf16;
      cast(gradient.f32().data(), reinterpret_cast<std::uint16_t*>(out.data()), gradient.count,
           share);
    } else {
      (void)cast_any(bucket_.dtype, gradient.data, dtype_, out.data(), gradient.count, share);
    }
    return out.size();
  }

  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    const std::byte* sum = inbox.data.data();
    bool finite = true;  // on a device the verdict gets that instead
    if (on_device()) {
      cast_cuda(dtype_, sum, bucket_.dtype, average.data, average.count, 1.0f, turn.verdict,
                turn.stream);
    } else if (bucket_.dtype == DType::f32) {
      const auto cast = dtype_ == DType::f16 ? cast_from_f16 : cast_from_bf16;
      finite = cast(reinterpret_cast<const std::uint16_t*>(sum), average.f32().data(),
                    average.count, 1.0f);
    } else {
      finite = cast_any(dtype_, sum, bucket_.dtype, average.data, average.count, 1.0f);
    }
    if (finite) return {};
    return {Code::skipped, "a rank's gradient was not finite, or too large for the type"};
  }

  bool learns(int) const override { return false; }
  void undo(const Turn&) override {}
  void conclude(const Turn& turn, TensorView gradient, float fill) override {
    fill_void_cuda(gradient.dtype, gradient.data, gradient.count, fill, turn.verdict, turn.stream);
  }
  void visit_state(StateVisitor&) override {}

 private:
  bool on_device() const { return site_.device.kind == Device::Kind::cuda; }

  DType dtype_;
  Bucket bucket_;
  Site site_;
};

template <DType dtype>
std::unique_ptr<Compressor> make(const Options&, const Bucket& bucket, const Site& site) {
  return std::make_unique<CastCompressor>(dtype, bucket, site);
}

Scheme describe(std::string name, std::uint8_t id, std::string summary,
                decltype(Scheme::make) make) {
  return {
      .name = std::move(name),
      .id = id,
      .paper = "",
      .summary = std::move(summary),
      .bits = "16",
      .reducible = true,
      .biased = true,
      .feedback = false,
      .stochastic = false,
      .momentum = false,
      .cuda = true,
      .halves = true,
      .options = {},
      .variants = {},
      .bytes = [](const Options&, const Bucket& bucket) { return bucket.elements() * 2; },
      .traffic = 6,
      .make = make,
  };
}

}  // namespace

const Scheme& fp16_scheme() {
  static const Scheme scheme = describe(
      "fp16", 2, "IEEE half precision through an all-reduce: 11 bits of precision, up to 65504.",
      make<DType::f16>);
  return scheme;
}

const Scheme& bf16_scheme() {
  static const Scheme scheme =
      describe("bf16", 3, "bfloat16 through an all-reduce: the range of f32, 8 bits of precision.",
               make<DType::bf16>);
  return scheme;
}

}  // namespace thinwire
