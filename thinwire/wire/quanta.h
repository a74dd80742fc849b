// quanta.h: a block of quanta: elements that each send plus, minus or nothing. It takes the shorter
// of two forms, so its length tells which one it is:
//
//     nothing   no element sends: no bytes
//     sparse    shorter than dense: how many send, then a Golomb code and a sign for each
//     dense     quanta_dense_bytes(): a bit per element that sends plus, then a bit per minus
//
// A GPU writes blocks in parallel without knowing any of their lengths: each into room for the
// dense form, which a list of all lengths then closes up.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinwire/core/bit_count.h"
#include "thinwire/core/cuda.h"
#include "thinwire/core/status.h"
#include "thinwire/core/view.h"

namespace thinwire {

inline constexpr std::uint32_t quanta_block = 1u << 14;  // elements; the last one may be shorter

THINWIRE_HD constexpr std::uint32_t quanta_plane_bytes(std::uint32_t count) {
  return (count + 7) / 8;
}
THINWIRE_HD constexpr std::uint32_t quanta_dense_bytes(std::uint32_t count) {
  return 2 * quanta_plane_bytes(count);
}

// The divisor of the gaps when `sent` >= 1 of `count` elements send: ln 2 times the mean gap, which
// is best for a uniform support.
THINWIRE_HD constexpr std::uint64_t quanta_divisor(std::uint32_t sent, std::uint32_t count) {
  const std::uint64_t ln2 = 45426;  // times 2^16
  const std::uint64_t divisor = count * ln2 / (std::uint64_t{sent} << 16);
  return divisor < 1 ? 1 : divisor;
}

// Bits of the number of elements that send, less one.
THINWIRE_HD constexpr unsigned quanta_head_bits(std::uint32_t count) {
  return bit_width(count - 1);
}

// Writes the block whose bits are `plus` and `minus`, of 1 <= count <= quanta_block elements, into
// `out`, which has room for the dense form. Returns its bytes.
std::size_t quanta_encode(ConstBytes plus, ConstBytes minus, std::uint32_t count, Bytes out);

// Adds tau or -tau to the elements that send, from a block that is shorter than the dense form.
// Refuses whatever quanta_encode() does not write.
Status quanta_add_sparse(ConstBytes block, std::uint32_t count, float tau, float* target);

// Whether a block of the dense form has no padding set and no element of both signs.
bool quanta_dense_is_sound(ConstBytes block, std::uint32_t count);

}  // namespace thinwire
