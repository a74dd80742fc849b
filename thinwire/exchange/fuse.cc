// fuse.cc: collects legs in parcels.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/fuse.h"

namespace thinwire {

Parcel* Fuser::add(std::size_t lane, int round, const Leg& leg, ConstBytes bytes) {
  Parcel* leaving = nullptr;
  auto place = open_.find(round);
  if (place != open_.end()) {
    const Leg& others = place->second->leg;
    if (others.reduction != leg.reduction || others.dtype != leg.dtype) leaving = close(round);
  }
  Parcel* const parcel = open(round, leg);
  parcel->riders.push_back({lane, leg, parcel->data.size()});
  parcel->data.insert(parcel->data.end(), bytes.begin(), bytes.end());
  parcel->leg.bytes = parcel->data.size();
  // A new parcel is never full, so at most one parcel is sent.
  return parcel->leg.bytes >= bytes_ ? close(round) : leaving;
}

Parcel* Fuser::open(int round, const Leg& leg) {
  Parcel*& place = open_[round];
  if (place) return place;
  if (spare_.empty()) {
    all_.push_back(std::make_unique<Parcel>());
    spare_.push_back(all_.back().get());
  }
  place = spare_.back();
  spare_.pop_back();
  place->round = round;
  place->leg = {leg.reduction, leg.dtype, 0};
  place->riders.clear();
  place->data.clear();
  return place;
}

Parcel* Fuser::close(int round) {
  const auto place = open_.find(round);
  Parcel* const parcel = place->second;
  open_.erase(place);
  return parcel;
}

}  // namespace thinwire
