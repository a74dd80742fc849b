// passage.cc: from an encoder's bytes to an inbox.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/passage.h"

#include "thinwire/core/error.h"

namespace thinwire {
namespace {

ReduceOp reduce_op(const Leg& leg) {
  return leg.reduction == Reduction::sum ? ReduceOp::sum : ReduceOp::max;
}

}  // namespace

bool Passage::has_slots() const {
  return leg_.reduction == Reduction::gather || leg_.reduction == Reduction::scatter;
}

std::size_t Passage::lengths(int ranks) const {
  if (!has_slots()) return 0;
  return leg_.reduction == Reduction::scatter ? static_cast<std::size_t>(ranks) : 1;
}

// Work on the memory that goes may still be under way on a device.
Bytes Passage::room(Buffer& buffer, std::size_t bytes) const {
  if (buffer.size() < bytes) {
    if (stream_) stream_->wait();
    buffer = Buffer(place_, bytes, stream_ ? stream_->device() : Device{});
  }
  return {buffer.data(), bytes};
}

Bytes Passage::begin(const Leg& leg, int ranks, void* values) {
  leg_ = leg;
  const std::size_t all = leg.bytes * static_cast<std::size_t>(ranks);
  out_ = leg.in_place ? Bytes(static_cast<std::byte*>(values), leg.bytes)
                      : room(payload_, leg.reduction == Reduction::scatter ? all : leg.bytes);
  slots_ = has_slots() ? room(arrived_, all) : Bytes();
  return out_;
}

Pending Passage::start(Group& group, const Written& written, Stream stream) {
  if (!has_slots()) return group.all_reduce(out_, leg_.dtype, reduce_op(leg_), stream);
  sizes_.resize(static_cast<std::size_t>(group.size()));
  if (leg_.reduction == Reduction::scatter)
    return group.all_to_all(out_, written.pieces, leg_.bytes, slots_, sizes_, stream);
  return group.all_gather(out_.first(written.bytes), leg_.bytes, slots_, sizes_, stream);
}

void Passage::start(StreamGroup& group, Stream stream) const {
  switch (leg_.reduction) {
    case Reduction::sum:
    case Reduction::max:
      return group.all_reduce(out_, leg_.dtype, reduce_op(leg_), stream);
    case Reduction::gather:
      return group.all_gather(out_, slots_, stream);
    case Reduction::scatter:
      return group.all_to_all(out_, slots_, stream);
  }
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

std::string round_fault(const std::string& where, int rank, const std::string& what) {
  return text_of(where, rank < 0 ? "" : ", bytes from rank " + std::to_string(rank), ": ", what,
                 not_taken);
}

}  // namespace thinwire
