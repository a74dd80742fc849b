// fuzz_atomo.cc: any bytes are added or rejected, never over-read. What atomo encodes it also
// decodes, within its bound.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "fuzz/fuzz.h"
#include "thinwire/compress/atomo.h"

// Input: the payload of two small layers and a bias; then the same bytes as a gradient.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  const Bucket bucket{0, {{"a", 0, 12, {2, 6}}, {"b", 12, 2, {}}, {"c", 14, 20, {5, 4}}}};
  const auto codec = make_atomo_codec(1.5, bucket);
  fuzz::Input input(data, size);
  std::vector<float> once(34), twice(34), gradient, residual(34);
  const Status status = codec->add(input.rest(), 0.5f, once);
  fuzz::require(status.code == codec->add(input.rest(), 0.5f, twice).code, "one verdict");
  const bool same = std::memcmp(once.data(), twice.data(), once.size() * sizeof(float)) == 0;
  fuzz::require(!status.ok() || same, "one result");
  for (const float value : once)
    fuzz::require(!status.ok() || std::isfinite(value), "what is accepted is finite");

  for (std::size_t i = 0; i < 34; ++i) gradient.push_back(input.take<float>());
  std::vector<std::byte> out(codec->payload_bytes());
  const Coded coded = codec->encode(gradient, residual, size, out);
  fuzz::require(coded.bytes <= out.size(), "no more bytes than the bound");
  fuzz::require(codec->add(ConstBytes(out).first(coded.bytes), 1, once).ok(), "decodes its own");
  return 0;
}
