// fuzz_roundtrip.cc: survivors encode to the same bytes twice, within the bound, and decode to the
// values that the encoder returned.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "fuzz/fuzz.h"
#include "thinwire/wire/frame.h"

namespace thinwire {
namespace {

struct Case {
  FrameHeader header;
  IndexChoice choice = IndexChoice::smallest;
  Sparse survivors;
};

// Gaps as u16 scaled by a shift, values as u32 bit patterns. Zeros and non-finite values become 1.
Case read_case(fuzz::Input input) {
  Case out;
  out.header.values = static_cast<ValueCoder>(input.take<std::uint8_t>() % value_coder_count);
  out.choice = static_cast<IndexChoice>(input.take<std::uint8_t>() % 4);
  const unsigned shift = input.take<std::uint8_t>() % 16;
  out.header.elements = input.take<std::uint32_t>();
  const auto fewest = static_cast<std::uint8_t>(
      out.header.elements >> 4 == 0 ? 0 : 28 - __builtin_clz(out.header.elements));
  out.header.chunk_log2 =
      static_cast<std::uint8_t>(fewest + input.take<std::uint8_t>() % (32 - fewest));
  std::uint64_t next = 0;
  while (!input.empty()) {
    next += std::uint64_t{input.take<std::uint16_t>()} << shift;
    if (next >= out.header.elements) break;
    const auto value = input.take<float>();
    out.survivors.indices.push_back(static_cast<std::uint32_t>(next++));
    out.survivors.values.push_back(std::isfinite(value) && value != 0 ? value : 1.0f);
  }
  return out;
}

}  // namespace
}  // namespace thinwire

// Input: u8 value coder, u8 choice, u8 shift of gaps, u32 elements, u8 chunk, then (u16 gap, f32
// value) pairs.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  const Case input = read_case({data, size});
  const std::vector<std::uint32_t>& indices = input.survivors.indices;
  std::vector<float> values = input.survivors.values, twice = values;
  std::vector<std::byte> first(sparse_frame_bound(input.header, indices.size())), second(first);
  const std::size_t length = encode_sparse(input.header, indices, values, input.choice, first);
  const std::size_t again = encode_sparse(input.header, indices, twice, input.choice, second);
  first.resize(length);
  second.resize(again);
  fuzz::require(first == second, "encoding twice gives the same bytes");
  FrameHeader header;
  Sparse out;
  std::size_t used = 0;
  const Status status = decode_sparse(first, indices.size(), header, out, used);
  fuzz::require(status.ok() && used == length && header == input.header, "what is encoded decodes");
  fuzz::require(out.indices == indices, "indices come back");
  fuzz::require(out.values.empty() || std::memcmp(out.values.data(), values.data(),
                                                  values.size() * sizeof(float)) == 0,
                "the encoder hands back what the decoder reads");
  return 0;
}
