// fuzz_sign.cc: an accepted payload of signs is what an encoder writes for its decoded values.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <vector>

#include "fuzz/fuzz.h"
#include "thinwire/compress/sign.h"

// Input: u8 levels, u8 elements, u8 longest group, then the payload.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  fuzz::Input input(data, size);
  const auto levels = static_cast<SignLevels>(input.take<std::uint8_t>() % 2);
  const std::size_t count = input.take<std::uint8_t>();
  std::vector<SignGroup> groups;
  cut_evenly(0, count, input.take<std::uint8_t>() + std::size_t{1}, groups);
  SignCodec codec(levels, groups);
  std::vector<float> said(count);
  if (!codec.add(input.rest(), 1.0f, said).ok()) return 0;
  for (const float value : said) fuzz::require(std::isfinite(value), "levels are finite");
  // Means of equal numbers may round; signs may not change. An upper level of 0 beside a
  // lower one stays.
  std::vector<std::byte> again(codec.payload_bytes());
  fuzz::require(codec.encode(said, {}, 0, again).finite, "what was said can be sent");
  std::vector<float> heard(count);
  fuzz::require(codec.add(again, 1.0f, heard).ok(), "what is encoded decodes");
  for (std::size_t i = 0; i < count; ++i)
    fuzz::require((said[i] < 0) == (heard[i] < 0), "signs have one spelling");
  return 0;
}
