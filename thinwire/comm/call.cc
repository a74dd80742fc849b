// call.cc: collectives as text, and their checks.
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

void Operands::keep_own(const Call& call, int rank) const {
  const auto me = static_cast<std::size_t>(rank);
  const ConstBytes own = piece(call, rank);
  std::ranges::copy(own, data.subspan(me * call.bytes).begin());
  sizes[me] = own.size();
}

void check(int rank, int ranks, const Call& call, const Operands& operands) {
  const auto count = static_cast<std::size_t>(ranks);
  const auto refuse = [&](const auto&... why) {
    fail("rank ", rank, ": ", call.str(), ": ", why...);
  };
  const auto check_slots = [&](std::size_t longest) {
    if (longest > call.bytes)
      refuse("rank ", rank, " wants to send ", longest, " bytes to a slot of ", call.bytes);
    if (operands.sizes.size() != count || operands.data.size() / count < call.bytes)
      refuse("expected memory for ", count, " slots and sizes, got ", operands.data.size(),
             " bytes and ", operands.sizes.size(), " sizes");
  };
  switch (call.kind) {
    case Kind::all_reduce:
      if (call.bytes % size_of(call.dtype) != 0)
        refuse("expected whole elements of ", size_of(call.dtype), " bytes");
      return;
    case Kind::all_gather:
      return check_slots(operands.mine.size());
    case Kind::all_to_all:
      if (operands.mine_sizes.size() != count || operands.mine.size() / count < call.bytes)
        refuse("expected ", count, " pieces to send, got ", operands.mine.size(), " bytes and ",
               operands.mine_sizes.size(), " sizes");
      return check_slots(*std::ranges::max_element(operands.mine_sizes));
    case Kind::broadcast:
      if (call.root < 0 || call.root >= ranks) refuse("expected a root from 0 to ", ranks - 1);
      return;
    case Kind::barrier:
      return;
  }
}

}  // namespace thinwire
