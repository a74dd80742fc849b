// passage.cc: from an encoder's bytes to an inbox.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/passage.h"

namespace thinwire {

ReduceOp reduce_op(const Leg& leg) {
  return leg.reduction == Reduction::sum ? ReduceOp::sum : ReduceOp::max;
}

bool Passage::has_slots() const {
  return leg_.reduction == Reduction::gather || leg_.reduction == Reduction::scatter;
}

Bytes Passage::begin(const Leg& leg, int ranks, void* values) {
  leg_ = leg;
  if (leg.in_place) {
    out_ = {static_cast<std::byte*>(values), leg.bytes};
  } else {
    const bool pieces = leg.reduction == Reduction::scatter;
    payload_.resize(leg.bytes * (pieces ? static_cast<std::size_t>(ranks) : 1));
    out_ = payload_;
  }
  return out_;
}

Pending Passage::start(Group& group, std::size_t bytes, std::span<const std::size_t> pieces,
                       Stream stream) {
  if (!has_slots()) return group.all_reduce(out_, leg_.dtype, reduce_op(leg_), stream);
  const auto ranks = static_cast<std::size_t>(group.size());
  slots_.resize(ranks * leg_.bytes);
  sizes_.resize(ranks);
  if (leg_.reduction == Reduction::scatter)
    return group.all_to_all(out_, pieces, leg_.bytes, slots_, sizes_, stream);
  return group.all_gather(out_.first(bytes), leg_.bytes, slots_, sizes_, stream);
}

Inbox Passage::inbox() const {
  Inbox inbox;
  inbox.data = out_;
  if (has_slots()) {
    inbox.data = slots_;
    inbox.slot_bytes = leg_.bytes;
    inbox.sizes = sizes_;
  }
  return inbox;
}

}  // namespace thinwire
