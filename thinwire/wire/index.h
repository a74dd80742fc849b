// index.h: the coders of a chunk's sorted indices. All of them write the gaps between neighbours,
// lowest bit first. They differ in size, and in whether a decoder can work in parallel inside a
// chunk.
//
//   golomb       gap / divisor in unary, remainder in (truncated) binary; Rice is its power-of-two
//                case. Within 1 % of the entropy of uniform supports. The default on the CPU.
//   elias_fano   low bits plain, high parts as a bitmap: about 0.5 bit more, decodes with select in
//                parallel.
//   gap          an adaptive binary model of the gaps: goes below the uniform bound where survivors
//                cluster. Several times slower than golomb.
//
// docs/wire_format.md specifies every bit, with a worked example per coder.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thinwire/core/status.h"
#include "thinwire/core/view.h"

namespace thinwire {

// The ids are on the wire and never change.
enum class IndexCoder : std::uint8_t { golomb = 0, elias_fano = 1, gap = 2 };

// How the encoder of a frame chooses: always the smallest, or always one coder. With `gap`, a chunk
// uses golomb where that is not longer.
enum class IndexChoice : std::uint8_t { smallest, golomb, elias_fano, gap };

// The part of a chunk's directory entry that describes its indices.
struct IndexCode {
  IndexCoder coder = IndexCoder::golomb;
  std::uint8_t parameter = 0;  // golomb: divisor code; elias_fano: low bits; gap: 0
  std::size_t bytes = 0;
};

// An upper bound of index_encode()'s bytes for any `count` indices below `extent` and any choice.
std::size_t index_bound(std::size_t count, std::uint32_t extent);

// Codes sorted, distinct indices below `extent`, at least one, into `out`, which holds
// index_bound() bytes.
IndexCode index_encode(std::span<const std::uint32_t> indices, std::uint32_t extent,
                       IndexChoice choice, Bytes out);

// Decodes exactly out.size() indices from exactly code.bytes bytes. Anything else - an index not
// above its predecessor or not below `extent`, bytes left over, set bits in the padding - is an
// error, and `out` is then unspecified.
Status index_decode(const IndexCode& code, ConstBytes bytes, std::uint32_t extent,
                    std::span<std::uint32_t> out);

}  // namespace thinwire
