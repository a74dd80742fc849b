// quantiser_target.h: shared by the fuzzers of quantisers: runs a decoder and its reference on the
// same bytes, in memory of exactly their length.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <vector>

#include "fuzz/fuzz.h"

namespace thinwire::fuzz {

// The input's bytes, padded with zeros if it is too short.
inline std::vector<std::uint8_t> payload_of(const Input& input, std::size_t bytes) {
  std::vector<std::uint8_t> payload(bytes);
  const std::size_t size = bytes < input.rest().size() ? bytes : input.rest().size();
  if (size > 0) std::memcpy(payload.data(), input.rest().data(), size);
  return payload;
}

// Calls both with a target of `count` zeros. They must accept the same and give the same bits.
template <typename Fast, typename Slow>
void require_agreement(std::size_t count, Fast fast, Slow slow) {
  std::vector<float> a(count), b(count);
  const bool accepted = fast(a.data());
  require(accepted == slow(b.data()), "decoder and reference accept the same bytes");
  if (!accepted) return;
  require(count == 0 || std::memcmp(a.data(), b.data(), count * sizeof(float)) == 0,
          "decoder and reference give the same bits");
  for (const float value : a) require(std::isfinite(value), "what is accepted is finite");
}

}  // namespace thinwire::fuzz
