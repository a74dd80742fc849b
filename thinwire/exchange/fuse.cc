// fuse.cc: collects legs in parcels.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/fuse.h"

namespace thinwire {

void Parcel::pack(const OwnStream& stream, int ranks) {
  const Bytes all = passage.begin(leg, ranks, nullptr);
  for (const Rider& rider : riders)
    stream.copy(all.data() + rider.offset, rider.bytes.data(), rider.bytes.size());
}

Inbox Parcel::unpack(const OwnStream& stream, const Rider& rider) const {
  Inbox inbox;
  inbox.data = passage.inbox().data.subspan(rider.offset, rider.leg.bytes);
  if (rider.leg.in_place) stream.copy(rider.bytes.data(), inbox.data.data(), inbox.data.size());
  return inbox;
}

Parcel* Fuser::add(std::size_t lane, int round, const Leg& leg, Bytes bytes) {
  Parcel* leaving = nullptr;
  auto place = open_.find(round);
  if (place != open_.end()) {
    const Leg& others = place->second->leg;
    if (others.reduction != leg.reduction || others.dtype != leg.dtype) leaving = close(round);
  }
  Parcel* const parcel = open(round, leg);
  const std::size_t at = (parcel->leg.bytes + alignment_ - 1) / alignment_ * alignment_;
  parcel->riders.push_back({lane, leg, bytes, at});
  parcel->leg.bytes = at + leg.bytes;
  // A new parcel is never full, so at most one parcel is sent.
  return parcel->leg.bytes >= bytes_ ? close(round) : leaving;
}

Parcel* Fuser::open(int round, const Leg& leg) {
  Parcel*& place = open_[round];
  if (place) return place;
  if (spare_.empty()) {
    all_.push_back(std::make_unique<Parcel>());
    all_.back()->passage = Passage(stream_, place_on(stream_.device()));
    spare_.push_back(all_.back().get());
  }
  place = spare_.back();
  spare_.pop_back();
  place->round = round;
  place->leg = {leg.reduction, leg.dtype, 0};
  place->riders.clear();
  return place;
}

Parcel* Fuser::close(int round) {
  const auto place = open_.find(round);
  Parcel* const parcel = place->second;
  open_.erase(place);
  return parcel;
}

}  // namespace thinwire
