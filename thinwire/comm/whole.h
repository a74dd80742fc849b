// whole.h: elements as integers, for a library whose own reductions differ from those of
// reduce.h: a maximum that loses a NaN or treats -0 as 0, or a sum of i8 that wraps. On i32
// every library gives one answer: exactly the maximum of reduce.h, and the exact sum of i8,
// which is saturated afterwards.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "thinwire/comm/group.h"

namespace thinwire {

// True for the maximum of f32, f16 and bf16 and for the sum of i8. The rest may be left
// to the library.
bool needs_whole(DType dtype, ReduceOp op);

// Converts such a type: `from` has one element per number. Floats keep their order, with +0 above
// -0, and every NaN is the largest.
void to_whole(ConstBytes from, DType dtype, std::span<std::int32_t> numbers);
void from_whole(std::span<const std::int32_t> numbers, DType dtype, Bytes to);

}  // namespace thinwire
