// passage.cc: from an encoder's bytes to an inbox.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/passage.h"

#include <algorithm>

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

void Passage::share(Passage& first, int rank, int ranks, bool learns) {
  first_ = &first;
  learns_ = learns;
  me_ = static_cast<std::size_t>(rank);
  shared_by_ = static_cast<std::size_t>(ranks);
}

// This rank's part of the memory that all ranks write to.
Bytes Passage::shared_room(std::size_t message) {
  constexpr std::size_t line = 64;  // of a cache
  stride_ = (message + line - 1) / line * line;
  slots_ = first_ == this ? room(arrived_, stride_ * shared_by_) : first_->slots_;
  return slots_.subspan(stride_ * me_, message);
}

Bytes Passage::begin(const Leg& leg, int ranks, void* values) {
  leg_ = leg;
  const std::size_t all = leg.bytes * static_cast<std::size_t>(ranks);
  const std::size_t message = leg.reduction == Reduction::scatter ? all : leg.bytes;
  // A rank whose leg differs from the first one's writes elsewhere; send() then names it.
  const bool alike = first_ == this || (first_ && first_->leg_.reduction == leg.reduction &&
                                        first_->leg_.bytes == leg.bytes);
  if (alike && has_slots()) return out_ = shared_room(message);
  out_ = leg.in_place ? Bytes(static_cast<std::byte*>(values), leg.bytes) : room(payload_, message);
  slots_ = has_slots() ? room(arrived_, all) : Bytes();
  reduced_ = out_;
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

// The lengths of a scatter lie by receiver.
void Passage::post(const Written& written) {
  if (!has_slots()) return;
  const bool scatter = leg_.reduction == Reduction::scatter;
  std::vector<std::size_t>& sizes = first_->sizes_;
  sizes.resize(scatter ? shared_by_ * shared_by_ : shared_by_);
  if (!scatter) sizes[me_] = written.bytes;
  for (std::size_t to = 0; scatter && to < shared_by_; ++to)
    sizes[to * shared_by_ + me_] = written.pieces[to];
}

// A decoder looks for a sum in place in its own memory; rank 0 is about to change its own.
void Passage::receive(ConstBytes reduced) {
  if (leg_.in_place && learns_)
    std::ranges::copy(reduced, out_.begin());
  else
    reduced_ = reduced;
}

Inbox Passage::inbox() const {
  Inbox inbox;
  inbox.data = reduced_;
  if (!has_slots()) return inbox;
  inbox.data = slots_;
  inbox.slot_bytes = first_ ? stride_ : leg_.bytes;
  inbox.sizes = first_ ? first_->sizes_ : sizes_;
  if (first_ && leg_.reduction == Reduction::scatter) {
    inbox.data = slots_.subspan(me_ * leg_.bytes);
    inbox.sizes = inbox.sizes.subspan(me_ * shared_by_, shared_by_);
  }
  return inbox;
}

std::string round_fault(const std::string& where, int rank, const std::string& what) {
  return text_of(where, rank < 0 ? "" : ", bytes from rank " + std::to_string(rank), ": ", what,
                 not_taken);
}

}  // namespace thinwire
