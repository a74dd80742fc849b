// whole.h: elements as whole numbers, for a library whose own reductions are not those of reduce.h:
// a maximum that loses a NaN or takes -0 for 0, a sum of i8 that wraps. As i32 any library gives
// one answer: the maximum of reduce.h to the bit, the sum of i8 exactly, and cut off at the end.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "thinwire/comm/group.h"

namespace thinwire {

// f32, f16, bf16 for a maximum, i8 for a sum. The others may be left to the library.
bool needs_whole(DType dtype, ReduceOp op);

// For such a type: `from` has one element per number. Floats keep their order, +0 above -0, and
// every NaN is the largest.
void to_whole(ConstBytes from, DType dtype, std::span<std::int32_t> numbers);
void from_whole(std::span<const std::int32_t> numbers, DType dtype, Bytes to);

}  // namespace thinwire
