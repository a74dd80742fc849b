// values.h: the coders of a chunk's values. Coders round; the encoder returns the values that
// receivers will decode, so that the rounding error can stay in the residual. All arithmetic is in
// integers or single exact operations, so every machine and GPU gets the same bits, whatever the
// order of work.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "thinwire/core/status.h"
#include "thinwire/core/view.h"

namespace thinwire {

// The ids are on the wire and never change.
enum class ValueCoder : std::uint8_t {
  f32 = 0,
  f16 = 1,   // rounds to nearest even, saturates at 65504
  bf16 = 2,  // rounds to nearest even, saturates at the largest finite
  log8 = 3,  // sign and 7 bits of level, levels log-spaced between the chunk's smallest and largest
             // magnitude
  log4 = 4,  // sign and 3 bits of level
  sign = 5,  // sign, and one magnitude for the chunk: the mean
};

// Their names in options, in order of id.
inline constexpr std::string_view value_coder_names[] = {"f32",  "f16",  "bf16",
                                                         "log8", "log4", "sign"};
inline constexpr std::size_t value_coder_count = 6;

// Bits that one value takes, without the chunk's header.
std::size_t value_bits(ValueCoder coder);

// Bytes that `count` > 0 values take, the chunk's value header included. Exact, not a bound.
std::size_t value_bytes(ValueCoder coder, std::size_t count);

// Codes finite, non-zero values into `out` (value_bytes() long) and replaces each by the value that
// a decoder will read.
void value_encode(ValueCoder coder, std::span<float> values, Bytes out);

// Decodes out.size() values from exactly value_bytes() bytes. A non-finite value, a bad header or
// set padding bits is an error, and `out` is then unspecified.
Status value_decode(ValueCoder coder, ConstBytes bytes, std::span<float> out);

}  // namespace thinwire
