// verbs.h: the five collectives of a group, written once for all engines. Each states its call and
// hands it to start(), where the engine gives it a number, checks it and carries it out. Not for
// users.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/comm/call.h"

namespace thinwire {

class EngineGroup : public Group {
 public:
  Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream) final {
    return start({.kind = Kind::all_reduce, .bytes = data.size(), .dtype = dtype, .op = op},
                 {.data = data});
  }

  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream) final {
    return start({.kind = Kind::all_gather, .bytes = slot_bytes},
                 {.data = slots, .mine = mine, .sizes = sizes});
  }

  Pending all_to_all(ConstBytes mine, std::span<const std::size_t> mine_sizes,
                     std::size_t slot_bytes, Bytes slots, std::span<std::size_t> sizes,
                     Stream) final {
    return start({.kind = Kind::all_to_all, .bytes = slot_bytes},
                 {.data = slots, .mine = mine, .mine_sizes = mine_sizes, .sizes = sizes});
  }

  Pending broadcast(Bytes data, int root, Stream) final {
    return start({.kind = Kind::broadcast, .bytes = data.size(), .root = root}, {.data = data});
  }

  Pending barrier() final { return start({.kind = Kind::barrier}, {}); }

 private:
  virtual Pending start(const Call& call, const Operands& operands) = 0;
};

}  // namespace thinwire
