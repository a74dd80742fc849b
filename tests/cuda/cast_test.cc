// cast_test.cc: casts on a GPU against those of the CPU, for every pair of types.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/cast.h"

#include "tests/cuda/device.h"
#include "tests/kernels/kernel_testing.h"

namespace thinwire {
namespace {

class CastOnDevice : public OnDevice {
 protected:
  // Casts x on both; the arrays on the GPU start `offset` elements after aligned addresses.
  void compare(DType from, DType to, const std::vector<float>& values, std::size_t offset) {
    const float factor = 0.3f;
    const Elements x = elements_of(from, values);
    Elements expected(values.size() * size_of(to));
    const bool finite = cast_any(from, x.data(), to, expected.data(), values.size(), factor);
    const OnGpu<std::byte> in(x, offset * size_of(from));
    const OnGpu<std::byte> out(Elements(expected.size()), (3 - offset) * size_of(to));
    const VerdictOnGpu verdict;
    cast_cuda(from, in.data(), to, out.data(), values.size(), factor, verdict.data(), stream);
    ASSERT_TRUE(same_elements(to, out.download(stream), expected))
        << name_of(from) << " to " << name_of(to) << ", " << values.size() << " elements";
    ASSERT_EQ(in.download(stream), x);
    const Verdict found = verdict.download(stream);
    ASSERT_EQ(found.skipped, finite ? 0u : 1u);
    ASSERT_EQ(found.unsound, 0u);
    ASSERT_EQ(found.fault, 0u);
  }
};

TEST_F(CastOnDevice, EqualsTheCpu) {
  for_all_shapes([&](Content content, std::size_t size, std::size_t offset) {
    const auto values = make_content(content, 1, size);
    for (const DType from : gradient_types) {
      for (const DType to : gradient_types) {
        ASSERT_NO_FATAL_FAILURE(compare(from, to, values, offset));
      }
    }
  });
}

TEST_F(CastOnDevice, EqualsTheCpuForManyWildElements) {
  const auto values = wild_floats(large_odd_size, 2);
  for (const DType from : gradient_types) {
    for (const DType to : gradient_types) {
      ASSERT_NO_FATAL_FAILURE(compare(from, to, values, 0));
      ASSERT_NO_FATAL_FAILURE(compare(from, to, values, 3));
    }
  }
}

// As dense does it: the same array, with or without a verdict.
TEST_F(CastOnDevice, ScalesInPlace) {
  for (const DType type : gradient_types) {
    for (const std::size_t offset : {0, 1}) {
      const auto values = make_content(Content::normal, 3, 10'001);
      Elements expected = elements_of(type, values);
      const OnGpu<std::byte> x(expected, offset * size_of(type));
      ASSERT_TRUE(cast_any(type, expected.data(), type, expected.data(), values.size(), 0.25f));
      cast_cuda(type, x.data(), type, x.data(), values.size(), 0.25f, nullptr, stream);
      EXPECT_EQ(x.download(stream), expected);
    }
  }
}

// One element at any place is seen, and a verdict that stands is left standing.
TEST_F(CastOnDevice, OneElementDecides) {
  const VerdictOnGpu verdict(Verdict{1, 0, 7});
  std::vector<float> x(4099, 1.0f);
  const OnGpu<float> fine(x), out(x);
  cast_cuda(DType::f32, fine.data(), DType::f32, out.data(), x.size(), 1, verdict.data(), stream);
  EXPECT_EQ(verdict.download(stream).skipped, 0u);
  for (const std::size_t at : {0, 1, 1023, 1024, 4095, 4096, 4098}) {
    const VerdictOnGpu fresh;
    x.assign(x.size(), 1.0f);
    x[at] = 70000.0f;  // too large for f16
    const OnGpu<float> in(x);
    cast_cuda(DType::f32, in.data(), DType::f16, out.data(), x.size(), 1, fresh.data(), stream);
    EXPECT_EQ(fresh.download(stream).skipped, 1u) << at;
    cast_cuda(DType::f32, in.data(), DType::f16, out.data(), x.size(), 1, verdict.data(), stream);
  }
  const Verdict last = verdict.download(stream);
  EXPECT_EQ(last.unsound, 1u);
  EXPECT_EQ(last.skipped, 1u);
  EXPECT_EQ(last.fault, 7u);
}

}  // namespace
}  // namespace thinwire
