// scaled_test.cc: images of other data at another size, and rejected input.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "apps/train/data.h"
#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

std::string refusal_of(const std::string& spec) {
  try {
    open_data(spec, 4);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Scaled, ShowsTheSameImagesLarger) {
  const auto small = open_data("synthetic:2x4x6:5", 4);
  const auto large = open_data("scaled:12:synthetic:2x4x6:5", 4);
  EXPECT_EQ(large->problem().channels, 2);
  EXPECT_EQ(large->problem().height, 12);
  EXPECT_EQ(large->problem().width, 12);
  EXPECT_EQ(large->problem().classes, 5);
  EXPECT_EQ(large->train_examples(), small->train_examples());
  EXPECT_EQ(large->test_batches(100), small->test_batches(100));
  for (const bool test : {false, true}) {
    const Batch a = test ? small->test_batch(1, 3) : small->train_batch(1, 2, 0, 1, 3);
    const Batch b = test ? large->test_batch(1, 3) : large->train_batch(1, 2, 0, 1, 3);
    EXPECT_TRUE(torch::equal(a.target, b.target));
    ASSERT_EQ(b.input.sizes().vec(), (std::vector<std::int64_t>{3, 2, 12, 12}));
    // Three rows become one and two columns become one: the middle row of three is at a pixel's
    // centre, and halfway between two columns is their mean.
    EXPECT_TRUE(torch::allclose(b.input[0][1][4][0], a.input[0][1][1][0]));
    EXPECT_TRUE(torch::allclose((b.input[0][1][4][1] + b.input[0][1][4][2]) / 2,
                                (a.input[0][1][1][0] + a.input[0][1][1][1]) / 2));
  }
}

TEST(Scaled, SaysWhatIsWrong) {
  const std::string wanted = "expected a size from 1 to 4096 and other data";
  for (const char* spec : {"scaled:224", "scaled:0:synthetic", "scaled:-3:synthetic",
                           "scaled:5000:synthetic", "scaled:synthetic", "scaled::synthetic"}) {
    EXPECT_NE(refusal_of(spec).find(wanted), std::string::npos) << spec << ": " << refusal_of(spec);
  }
  EXPECT_NE(refusal_of("scaled").find("scaled:SIZE:DATA"), std::string::npos);
  EXPECT_NE(refusal_of("scaled:64:wings").find("unknown data 'wings'"), std::string::npos);
  EXPECT_NE(refusal_of("scaled:64:stdlib").find("expected images, got text"), std::string::npos);
}

}  // namespace
}  // namespace thinwire::train
