// call.h: a collective as one rank issues it: the part on which all ranks must agree, its text for
// errors, and its checks. Shared by the engines; not for users.
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
  std::size_t bytes = 0;        // size of the buffer, or of one slot
  DType dtype = DType::i8;      // all_reduce only
  ReduceOp op = ReduceOp::sum;  // all_reduce only
  int root = 0;                 // broadcast only

  bool operator==(const Call&) const = default;

  // "all_reduce of 400 bytes, f32 sum" and so on.
  std::string str() const;
};

// "all_reduce #17"
std::string label(const Call& call, std::uint64_t sequence);

// The error text when two ranks issued different collectives under one number.
std::string mismatch_text(std::uint64_t sequence, int rank, const Call& call, int other,
                          const Call& other_call);

// The caller's memory in a collective, as group.h describes it.
struct Operands {
  Bytes data = {};       // the buffer to reduce or to broadcast, or the slots
  ConstBytes mine = {};  // what a gather or an all-to-all sends
  std::span<const std::size_t> mine_sizes = {};  // all_to_all only
  std::span<std::size_t> sizes = {};             // number of bytes that arrive in each slot

  // What a gather or an all-to-all sends to a rank (possibly to our own).
  ConstBytes piece(const Call& call, int peer) const {
    if (call.kind == Kind::all_gather) return mine;
    const auto r = static_cast<std::size_t>(peer);
    return mine.subspan(r * call.bytes, mine_sizes[r]);
  }

  // Copies our own piece into its slot.
  void keep_own(const Call& call, int rank) const;
};

// Throws an Error that names the rank, the call, what was expected and what came.
void check(int rank, int ranks, const Call& call, const Operands& operands);

}  // namespace thinwire
