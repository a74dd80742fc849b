// norm_test.cc: the squared norm on a GPU against that of the CPU: the same bits.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/norm.h"

#include "tests/cuda/device.h"
#include "tests/kernels/kernel_testing.h"

namespace thinwire {
namespace {

class NormOnDevice : public OnDevice {
 protected:
  void compare(DType type, const Elements& x, std::size_t offset) {
    const std::size_t count = x.size() / size_of(type);
    const double expected = squared_norm_reference(type, x.data(), count);
    const OnGpu<std::byte> in(x, offset * size_of(type));
    const OnGpu<double> scratch(std::vector<double>(norm_scratch(count), -1)), out({-1});
    squared_norm_cuda(type, in.data(), count, scratch.data(), out.data(), stream);
    const double got = out.download(stream)[0];
    (void)scratch.download(stream);  // for its guards
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got));
    } else {
      ASSERT_EQ(std::bit_cast<std::uint64_t>(got), std::bit_cast<std::uint64_t>(expected))
          << name_of(type) << ", " << count << " elements";
    }
  }
};

TEST_F(NormOnDevice, EqualsTheCpu) {
  for_all_shapes([&](Content content, std::size_t size, std::size_t offset) {
    for (const DType type : gradient_types)
      ASSERT_NO_FATAL_FAILURE(
          compare(type, elements_of(type, make_content(content, 1, size)), offset));
  });
}

TEST_F(NormOnDevice, EqualsTheCpuForAnyNumberOfBlocks) {
  for (const std::size_t blocks : {2, 3, 5, 8, 33, 1023, 1024, 1025, 2049}) {
    for (const std::size_t rest : {0, 1, 33, 4095}) {
      auto x = wild_floats(blocks * norm_block + rest, 5);
      for (float& value : x) {  // without the largest exponents, so finite
        value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0xbfffffffu);
      }
      ASSERT_NO_FATAL_FAILURE(compare(DType::f32, elements_of(DType::f32, x), 1));
    }
  }
}

TEST_F(NormOnDevice, EqualsTheCpuForManyElements) {
  std::vector<float> x(large_odd_size);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = random_unit(3, i) - 0.5f;
  for (const DType type : gradient_types) {
    ASSERT_NO_FATAL_FAILURE(compare(type, elements_of(type, x), 0));
    ASSERT_NO_FATAL_FAILURE(compare(type, elements_of(type, x), 1));
  }
}

TEST_F(NormOnDevice, NormsOfBucketsAreAddedInOrder) {
  const std::vector<double> norms = {0x1p-60, 1, 0x1p-53, 0x1p-53, 0x1p60};
  for (std::size_t count = 0; count <= norms.size(); ++count) {
    double expected = 0;
    for (std::size_t i = 0; i < count; ++i) expected += norms[i];
    const OnGpu<double> in(norms), out({-1});
    add_norms_cuda(in.data(), count, out.data(), stream);
    EXPECT_EQ(out.download(stream)[0], expected) << count;
  }
}

}  // namespace
}  // namespace thinwire
