// limit_test.cc: what a gradient on a GPU becomes in a step that is not taken.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/limit.h"

#include "tests/cuda/device.h"
#include "tests/kernels/kernel_testing.h"

namespace thinwire {
namespace {

using LimitOnDevice = OnDevice;

TEST_F(LimitOnDevice, FillsTheGradientOfAVoidStep) {
  const auto values = make_content(Content::normal, 1, 5003);
  for (const DType type : gradient_types) {
    const Elements x = elements_of(type, values);
    for (const float fill : {0.0f, std::numeric_limits<float>::quiet_NaN()}) {
      const Elements filled = elements_of(type, std::vector<float>(values.size(), fill));
      for (const Verdict& verdict :
           {Verdict{0, 0, 0}, Verdict{1, 0, 0}, Verdict{0, 1, 0}, Verdict{0, 0, 9}}) {
        for (const std::size_t offset : {0, 1}) {
          const OnGpu<std::byte> there(x, offset * size_of(type));
          const VerdictOnGpu verdict_there(verdict);
          fill_void_cuda(type, there.data(), values.size(), fill, verdict_there.data(), stream);
          EXPECT_TRUE(
              same_elements(type, there.download(stream), verdict.void_step() ? filled : x));
        }
      }
    }
  }
}

}  // namespace
}  // namespace thinwire
