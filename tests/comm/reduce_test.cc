// reduce_test.cc: the arithmetic of all-reduce: exact where possible, commutative bit for bit.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/reduce.h"

#include <gtest/gtest.h>

#include "tests/comm/group_laws.h"

namespace thinwire {
namespace {

// Random bits: every NaN, infinity, denormal and zero occurs in the 16- and 8-bit types.
TEST(Reduce, IsCommutativeBitForBit) {
  for (const DType type : laws::kTypes) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
      const std::size_t bytes = 40'000 * size_of(type);
      const laws::Buffer a = laws::bytes_of(1, 0, bytes), b = laws::bytes_of(2, 0, bytes);
      laws::Buffer ab = a, ba = b;
      reduce_into(ab, b, type, op);
      reduce_into(ba, a, type, op);
      EXPECT_EQ(ab, ba) << name_of(type);
    }
  }
}

TEST(Reduce, WorksAtEveryLengthAndOffset) {
  for (const DType type : laws::kTypes) {
    for (const std::size_t count : laws::kLengths) {
      const std::size_t bytes = count * size_of(type);
      const laws::Buffer a = laws::bytes_of(1, 0, bytes), b = laws::bytes_of(2, 0, bytes);
      laws::Buffer aligned = a;
      reduce_into(aligned, b, type, ReduceOp::sum);
      laws::Buffer shifted(bytes + 1), other(bytes + 3);
      std::ranges::copy(a, shifted.begin() + 1);
      std::ranges::copy(b, other.begin() + 3);
      reduce_into(Bytes(shifted).subspan(1), ConstBytes(other).subspan(3), type, ReduceOp::sum);
      EXPECT_TRUE(std::ranges::equal(aligned, Bytes(shifted).subspan(1)));
    }
  }
}

template <typename T>
T reduced(T a, T b, DType type, ReduceOp op) {
  reduce_into(std::as_writable_bytes(std::span(&a, 1)), std::as_bytes(std::span(&b, 1)), type, op);
  return a;
}

TEST(Reduce, RoundsHalvesOnce) {
  const auto sum = reduced(to_f16(2048), to_f16(3), DType::f16, ReduceOp::sum);
  EXPECT_EQ(from_f16(sum), 2052);  // 2051 is between 2050 and 2052: ties to even
  EXPECT_EQ(from_bf16(reduced(to_bf16(256), to_bf16(3), DType::bf16, ReduceOp::sum)), 260);
  EXPECT_TRUE(
      std::isinf(from_f16(reduced(to_f16(65504), to_f16(65504), DType::f16, ReduceOp::sum))));
}

TEST(Reduce, IntegerEdges) {
  using I8 = std::int8_t;
  EXPECT_EQ(reduced<I8>(127, 1, DType::i8, ReduceOp::sum), 127);
  EXPECT_EQ(reduced<I8>(-128, -1, DType::i8, ReduceOp::sum), -128);
  EXPECT_EQ(reduced<I8>(-128, 127, DType::i8, ReduceOp::sum), -1);
  EXPECT_EQ(reduced<I8>(-128, -1, DType::i8, ReduceOp::max), -1);
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(reduced<std::int32_t>(most, 1, DType::i32, ReduceOp::sum), -most - 1);
  EXPECT_EQ(reduced<std::int32_t>(-5, 3, DType::i32, ReduceOp::max), 3);
}

TEST(Reduce, NanWinsAndPlusZeroIsLarger) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(reduced(nan, 1.0f, DType::f32, ReduceOp::max)));
  EXPECT_TRUE(std::isnan(reduced(1.0f, nan, DType::f32, ReduceOp::max)));
  EXPECT_FALSE(std::signbit(reduced(-0.0f, 0.0f, DType::f32, ReduceOp::max)));
  EXPECT_FALSE(std::signbit(reduced(0.0f, -0.0f, DType::f32, ReduceOp::max)));
  EXPECT_EQ(reduced(-2.0f, -3.0f, DType::f32, ReduceOp::max), -2.0f);
}

}  // namespace
}  // namespace thinwire
