// reduce.h: the arithmetic of all-reduce: into[i] = into[i] op from[i], element by element.
//
// Every operation is commutative bit for bit, so that engines may combine in trees whose two sides
// swap operands: any NaN gives one fixed NaN, and +0 is larger than -0. f16 and bf16 are added in
// f32 and rounded back. i8 sums saturate (a wrapped vote would change its sign); i32 sums wrap.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>

#include "thinwire/comm/group.h"

namespace thinwire {

// Both spans have the same length, in whole elements, with any alignment.
void reduce_into(Bytes into, ConstBytes from, DType dtype, ReduceOp op);

// Combines the equally long parts of all ranks as c10d does (c10d/sums.h): share s of the buffer in
// the order of ranks s, s + 1, ..., s - 1. So ranks in one process get the bits of ranks in
// processes of their own. Calls give(at, result) for one piece after another; it may overwrite the
// parts there.
void reduce_ranks(std::span<const ConstBytes> parts, DType dtype, ReduceOp op,
                  const std::function<void(std::size_t at, ConstBytes result)>& give);

}  // namespace thinwire
