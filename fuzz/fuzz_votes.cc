// fuzz_votes.cc: an accepted payload of votes is what an encoder writes for those votes.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "fuzz/fuzz.h"
#include "thinwire/wire/votes.h"

// Input: u16 elements (up to 8191: two chunks, so that flags differ), then the payload.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace thinwire;
  fuzz::Input input(data, size);
  // Half of the inputs are short, so that the fuzzer finds complete payloads.
  const auto number = input.take<std::uint16_t>();
  const std::size_t elements = number % 2 == 0 ? number / 2 % 256 : number % 8192;
  // A short input is extended with zeros; otherwise no payload of two chunks would
  // ever be complete.
  std::vector<std::byte> payload(input.rest().begin(), input.rest().end());
  if (number % 2 == 1) payload.resize(votes_signs_at(elements) + (elements + 7) / 8 + 512);
  VoteReader reader;
  if (!reader.open(elements, payload).ok()) return 0;
  std::vector<std::byte> zeros, again(votes_bound(elements));
  std::size_t at = votes_signs_at(elements);
  for (std::size_t first = 0; first < elements; first += votes_chunk) {
    const VoteReader::Chunk chunk = reader.next();
    const std::size_t bytes = (std::min(votes_chunk, elements - first) + 7) / 8;
    fuzz::require(chunk.signs.size() == bytes, "a chunk has its signs");
    fuzz::require(chunk.zeros.empty() || chunk.zeros.size() == bytes, "zeros are whole");
    std::copy(chunk.signs.begin(), chunk.signs.end(),
              again.begin() + static_cast<std::ptrdiff_t>(at));
    at += bytes;
    zeros.insert(zeros.end(), chunk.zeros.begin(), chunk.zeros.end());
    zeros.resize((first + std::min(votes_chunk, elements - first) + 7) / 8);
  }
  again.resize(seal_votes(elements, zeros, again));
  fuzz::require(again == payload, "votes have one spelling");
  return 0;
}
