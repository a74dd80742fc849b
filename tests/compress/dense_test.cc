// dense_test.cc: dense, fp16 and bf16 with gradients of every type, and sites that they refuse.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "tests/gradients.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/buffer.h"
#include "thinwire/kernels/cast.h"

namespace thinwire {
namespace {

using testing::error_of;

constexpr DType types[] = {DType::f32, DType::f16, DType::bf16};

// The average of four equal ranks by a scheme, whose sum is made here; empty when it was skipped.
std::vector<float> average_of_four(const std::string& scheme, DType type,
                                   const std::vector<float>& gradient) {
  const std::size_t count = gradient.size();
  const auto compressor =
      make_compressor({scheme, {}}, Bucket::single(0, "w", count, type), {0, 4});
  std::vector<std::byte> memory(count * size_of(type));
  (void)cast_any(DType::f32, gradient.data(), type, memory.data(), count, 1);
  const Leg leg = compressor->leg(0, 0);
  EXPECT_EQ(leg.in_place, scheme == "dense");
  EXPECT_EQ(name_of(leg.dtype), scheme == "dense"  ? name_of(type)
                                : scheme == "fp16" ? name_of(DType::f16)
                                                   : name_of(DType::bf16));
  std::vector<std::byte> room(leg.bytes);
  const Bytes out = leg.in_place ? Bytes(memory) : Bytes(room);
  const TensorView view(memory.data(), count, type, {});
  EXPECT_EQ(compressor->encode({}, view, out), count * size_of(leg.dtype));
  EXPECT_EQ(out.size(), count * size_of(leg.dtype));
  (void)cast_any(leg.dtype, out.data(), leg.dtype, out.data(), count, 4);
  const Status status = compressor->decode({}, {out, leg.bytes, {}}, view);
  if (status.code == Code::skipped) return {};
  EXPECT_TRUE(status.ok());
  std::vector<float> result(count);
  (void)cast_any(type, memory.data(), DType::f32, result.data(), count, 1);
  return result;
}

TEST(Dense, AveragesGradientsOfEveryType) {
  const std::vector<float> gradient = {1, -0.5f, 0, 96, 0x1p-10f};
  for (const std::string scheme : {"dense", "fp16", "bf16"}) {
    for (const DType type : types)
      EXPECT_EQ(average_of_four(scheme, type, gradient), gradient) << scheme << name_of(type);
  }
}

// The sum of four would be beyond f16; the average is not.
TEST(Dense, ASumOfHalvesDoesNotOverflowWhereTheAverageDoesNot) {
  const std::vector<float> gradient = {65504, -65504};
  EXPECT_EQ(average_of_four("dense", DType::f16, gradient), gradient);
  EXPECT_EQ(average_of_four("fp16", DType::f16, gradient), gradient);
}

TEST(Dense, NonFiniteElementsSkipTheStep) {
  for (const std::string scheme : {"dense", "fp16", "bf16"}) {
    for (const DType type : types) {
      for (const float bad :
           {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
        EXPECT_TRUE(average_of_four(scheme, type, {1, bad, 2}).empty()) << scheme;
    }
  }
  // Finite as the gradient's type, but not as the type on the wire; and the other way round.
  EXPECT_TRUE(average_of_four("fp16", DType::f32, {1e6f}).empty());
  EXPECT_TRUE(average_of_four("bf16", DType::f16, {65504}).empty());
}

TEST(Dense, AGradientOfAnotherTypeOrPlaceIsAnError) {
  for (const std::string scheme : {"dense", "bf16"}) {
    const auto compressor = make_compressor({scheme, {}}, Bucket::single(7, "w", 3), {0, 1});
    std::vector<std::byte> memory(12);
    const auto error = [&](const TensorView& view) {
      return error_of([&] { compressor->encode({}, view, memory); });
    };
    EXPECT_EQ(error({memory.data(), 3, DType::bf16, {}}),
              scheme +
                  ", bucket 7: expected f32 elements, got bf16; pass gradients of the type it "
                  "was set up with");
    EXPECT_EQ(error({memory.data(), 3, DType::f32, {Device::Kind::cuda, 2}}),
              scheme +
                  ", bucket 7: expected memory of the CPU, got memory of cuda:2; pass "
                  "gradients of the device it was set up with");
    EXPECT_EQ(error({memory.data(), 2, DType::f32, {}}),
              scheme +
                  ", bucket 7: expected 3 elements, got 2; pass the bucket with the layout it "
                  "was set up with");
  }
}

TEST(Dense, SitesThatASchemeCannotServeAreErrors) {
  const Bucket bucket = Bucket::single(0, "w", 64);
  const auto error = [&](const char* scheme, const Site& site) {
    return error_of([&] { make_compressor({scheme, {}}, bucket, site); });
  };
  const Device gpu{Device::Kind::cuda, 1};
  const std::string no_kernels = error("atomo", {0, 1, true, true, gpu});
  EXPECT_EQ(no_kernels.find("scheme 'atomo' does not run on CUDA: it decomposes"), 0u)
      << no_kernels;
  EXPECT_NE(no_kernels.find("; these do: dense, fp16, bf16"), std::string::npos) << no_kernels;
  EXPECT_EQ(error("onebit", {0, 1}), "");
  if (has_cuda()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(error("dense", {0, 1, true, true, gpu}),
            "scheme 'dense': the gradients are on cuda:1, but this build of thinwire has no CUDA "
            "(-DTHINWIRE_CUDA=ON), or this machine no GPU");
}

}  // namespace
}  // namespace thinwire
