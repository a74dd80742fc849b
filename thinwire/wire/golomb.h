// golomb.h: the Golomb coder of gaps: quotient in unary, remainder in truncated binary.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "thinwire/core/status.h"
#include "thinwire/core/view.h"
#include "thinwire/wire/golomb_rule.h"

namespace thinwire {

// The cheapest divisor near the one that suits the mean gap, or downhill from it; never above
// count * (low + 1) + (extent - count) / 2^low bits with low = mean_gap_log2().
GolombPlan golomb_plan(std::span<const std::uint32_t> indices, std::uint32_t extent);

// Bits that `indices` take with this (canonical) parameter.
std::uint64_t golomb_bits(std::span<const std::uint32_t> indices, std::uint8_t parameter);

// Writes the plan's bits into `out`, which has room for them.
void golomb_encode(std::span<const std::uint32_t> indices, std::uint8_t parameter, Bytes out);

Status golomb_decode(std::uint8_t parameter, ConstBytes bytes, std::uint32_t extent,
                     std::span<std::uint32_t> out);

}  // namespace thinwire
