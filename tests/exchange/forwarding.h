// forwarding.h: a group that forwards everything to another group. Tests override what they observe
// or damage.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/comm/group.h"

namespace thinwire::testing {

class Forwarding : public Group {
 public:
  explicit Forwarding(Group& inner) : inner_(inner) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string name() const override { return inner_.name(); }
  Traffic traffic() const override { return inner_.traffic(); }
  Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) override {
    return inner_.all_reduce(data, dtype, op, stream);
  }
  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream stream) override {
    return inner_.all_gather(mine, slot_bytes, slots, sizes, stream);
  }
  Pending all_to_all(ConstBytes mine, std::span<const std::size_t> mine_sizes,
                     std::size_t slot_bytes, Bytes slots, std::span<std::size_t> sizes,
                     Stream stream) override {
    return inner_.all_to_all(mine, mine_sizes, slot_bytes, slots, sizes, stream);
  }
  Pending broadcast(Bytes data, int root, Stream stream) override {
    return inner_.broadcast(data, root, stream);
  }
  Pending barrier() override { return inner_.barrier(); }

 private:
  Group& inner_;
};

}  // namespace thinwire::testing
