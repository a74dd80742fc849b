// whole_test.cc: reductions of whole numbers against those of reduce.h, which they stand in for.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/whole.h"

#include <gtest/gtest.h>

#include "tests/comm/group_laws.h"
#include "thinwire/comm/reduce.h"

namespace thinwire {
namespace {

using Numbers = std::vector<std::int32_t>;

Numbers whole_of(const laws::Buffer& bytes, DType type) {
  Numbers numbers(bytes.size() / size_of(type));
  to_whole(bytes, type, numbers);
  return numbers;
}

laws::Buffer back(const Numbers& numbers, DType type) {
  laws::Buffer bytes(numbers.size() * size_of(type));
  from_whole(numbers, type, bytes);
  return bytes;
}

void expect_maxima_of_reduce(const laws::Buffer& a, const laws::Buffer& b, DType type) {
  laws::Buffer expected = a;
  reduce_into(expected, b, type, ReduceOp::max);
  Numbers larger = whole_of(a, type);
  const Numbers other = whole_of(b, type);
  for (std::size_t i = 0; i < larger.size(); ++i) larger[i] = std::max(larger[i], other[i]);
  EXPECT_EQ(back(larger, type), expected) << name_of(type);
}

TEST(Whole, MaximaAreThoseOfReduceToTheBit) {
  // Random bits: every NaN, infinity, denormal and zero occurs in the 16-bit types.
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    ASSERT_TRUE(needs_whole(type, ReduceOp::max));
    const std::size_t bytes = 40'000 * size_of(type);
    expect_maxima_of_reduce(laws::bytes_of(1, 0, bytes), laws::bytes_of(2, 0, bytes), type);
  }
  const std::vector<float> special = {0.0f,
                                      -0.0f,
                                      1e-45f,
                                      -1e-45f,
                                      1.0f,
                                      -1.0f,
                                      std::numeric_limits<float>::infinity(),
                                      -std::numeric_limits<float>::infinity(),
                                      std::bit_cast<float>(0x7f800001u),
                                      std::bit_cast<float>(0xffffffffu)};
  for (const float a : special) {
    for (const float b : special) {
      laws::Buffer one(4), other(4);
      std::memcpy(one.data(), &a, 4);
      std::memcpy(other.data(), &b, 4);
      expect_maxima_of_reduce(one, other, DType::f32);
    }
  }
}

TEST(Whole, SumsOfI8AreCutOffAtTheEnd) {
  ASSERT_TRUE(needs_whole(DType::i8, ReduceOp::sum));
  const laws::Buffer a = laws::bytes_of(1, 0, 10'000), b = laws::bytes_of(2, 0, 10'000);
  laws::Buffer expected = a;
  reduce_into(expected, b, DType::i8, ReduceOp::sum);
  Numbers sums = whole_of(a, DType::i8);
  const Numbers more = whole_of(b, DType::i8);
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
  EXPECT_EQ(back(sums, DType::i8), expected);
}

TEST(Whole, TheRestIsLeftToTheLibrary) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::i32})
    EXPECT_FALSE(needs_whole(type, ReduceOp::sum)) << name_of(type);
  EXPECT_FALSE(needs_whole(DType::i8, ReduceOp::max));
  EXPECT_FALSE(needs_whole(DType::i32, ReduceOp::max));
}

}  // namespace
}  // namespace thinwire
