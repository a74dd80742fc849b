// call.h: what one rank says when it issues a collective: the part on which all ranks must agree,
// its text for errors and its checks. Shared by the engines; not for users.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "thinwire/comm/group.h"

namespace thinwire {

enum class Kind : std::uint8_t { all_reduce, all_gather, all_to_all, broadcast, barrier };

const char* name_of(Kind kind);

struct Call {
  Kind kind = Kind::barrier;
  std::size_t bytes = 0;        // of the buffer, or of one slot
  DType dtype = DType::i8;      // all_reduce only
  ReduceOp op = ReduceOp::sum;  // all_reduce only
  int root = 0;                 // broadcast only

  bool operator==(const Call&) const = default;

  // "all_reduce of 400 bytes, f32 sum" and so on.
  std::string str() const;
};

// "all_reduce #17"
std::string label(const Call& call, std::uint64_t sequence);

// The sentence for two ranks that issued different collectives as the same one in order.
std::string mismatch_text(std::uint64_t sequence, int rank, const Call& call, int other,
                          const Call& other_call);

// Each throws an Error that names the rank, the call, what was expected and what came.
void check_all_reduce(int rank, const Call& call);
void check_broadcast(int rank, int ranks, const Call& call);
void check_slots(int rank, int ranks, const Call& call, std::size_t longest, std::size_t slots,
                 std::size_t sizes);
void check_pieces(int rank, int ranks, const Call& call, std::size_t mine,
                  std::span<const std::size_t> mine_sizes);

}  // namespace thinwire
