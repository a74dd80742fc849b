// call.cc: texts and checks of collectives.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/call.h"

#include <algorithm>

#include "thinwire/core/error.h"

namespace thinwire {

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::all_gather:
      return "all_gather";
    case Kind::all_to_all:
      return "all_to_all";
    case Kind::broadcast:
      return "broadcast";
    case Kind::barrier:
      return "barrier";
  }
  return "?";
}

std::string Call::str() const {
  std::string name(name_of(kind));
  if (kind == Kind::all_reduce)
    return text_of(name, " of ", bytes, " bytes, ", name_of(dtype),
                   op == ReduceOp::sum ? " sum" : " max");
  if (kind == Kind::all_gather || kind == Kind::all_to_all)
    return text_of(name, " with slots of ", bytes, " bytes");
  if (kind == Kind::broadcast) return text_of(name, " of ", bytes, " bytes from rank ", root);
  return name;
}

std::string label(const Call& call, std::uint64_t sequence) {
  return std::string(name_of(call.kind)) + " #" + std::to_string(sequence);
}

std::string mismatch_text(std::uint64_t sequence, int rank, const Call& call, int other,
                          const Call& other_call) {
  return text_of("collective #", sequence, " differs: rank ", rank, " calls ", call.str(),
                 ", rank ", other, " calls ", other_call.str(),
                 "; all ranks must issue the same collectives in the same order");
}

void check_all_reduce(int rank, const Call& call) {
  if (call.bytes % size_of(call.dtype) != 0)
    fail("rank ", rank, ": ", call.str(), ": expected whole elements of ", size_of(call.dtype),
         " bytes");
}

void check_broadcast(int rank, int ranks, const Call& call) {
  if (call.root < 0 || call.root >= ranks)
    fail("rank ", rank, ": ", call.str(), ": expected a root from 0 to ", ranks - 1);
}

void check_slots(int rank, int ranks, const Call& call, std::size_t longest, std::size_t slots,
                 std::size_t sizes) {
  const auto count = static_cast<std::size_t>(ranks);
  if (longest > call.bytes)
    fail("rank ", rank, ": ", call.str(), ": rank ", rank, " wants to send ", longest,
         " bytes to a slot of ", call.bytes);
  if (sizes != count || slots / count < call.bytes)
    fail("rank ", rank, ": ", call.str(), ": expected memory for ", count, " slots and sizes, got ",
         slots, " bytes and ", sizes, " sizes");
}

void check_pieces(int rank, int ranks, const Call& call, std::size_t mine,
                  std::span<const std::size_t> mine_sizes) {
  const auto count = static_cast<std::size_t>(ranks);
  if (mine_sizes.size() != count || mine / count < call.bytes)
    fail("rank ", rank, ": ", call.str(), ": expected ", count, " pieces to send, got ", mine,
         " bytes and ", mine_sizes.size(), " sizes");
  const std::size_t longest = *std::ranges::max_element(mine_sizes);
  if (longest > call.bytes)
    fail("rank ", rank, ": ", call.str(), ": rank ", rank, " wants to send ", longest,
         " bytes to a slot of ", call.bytes);
}

}  // namespace thinwire
