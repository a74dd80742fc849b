// fuse.h: lazy all-reduce (GradientFlow, Sun et al. 2019): small legs wait for each other and
// travel as one collective, so that a model of many small tensors pays the latency of a few. A
// property of the exchange: any leg that is reduced can ride, whatever its scheme.
//
// Legs of one round are taken by bucket number; they leave together when they have reached the
// threshold, when one of another type or operation follows, or when nobody else can join. All of
// that follows from bucket numbers and legs, so the order of collectives is the same on all ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "thinwire/compress/compressor.h"

namespace thinwire {

// One collective made of several legs.
struct Parcel {
  struct Rider {
    std::size_t lane = 0;  // of the exchange
    Leg leg;
    std::size_t offset = 0;  // of its bytes in `data`
  };

  int round = 0;
  Leg leg;  // of them together
  std::vector<Rider> riders;
  std::vector<std::byte> data;
};

// Owns all parcels until it is destroyed: a collective that failed may still write into them.
class Fuser {
 public:
  // Legs of fewer than `bytes` wait; 0: none does.
  explicit Fuser(std::size_t bytes) : bytes_(bytes) {}

  bool takes(const Leg& leg) const {
    const bool reduced = leg.reduction == Reduction::sum || leg.reduction == Reduction::max;
    return reduced && leg.bytes < bytes_;
  }

  // Copies a leg's bytes into the open parcel of its round. Returns a parcel that must leave now,
  // or null.
  Parcel* add(std::size_t lane, int round, const Leg& leg, ConstBytes bytes);

  // The lowest round that has an open parcel, or -1; and that parcel, to leave as it is.
  int lowest_open() const { return open_.empty() ? -1 : open_.begin()->first; }
  Parcel* close(int round);

  // The parcel has arrived and all its riders have been decoded.
  void release(Parcel* parcel) { spare_.push_back(parcel); }

 private:
  Parcel* open(int round, const Leg& leg);

  std::size_t bytes_;
  std::map<int, Parcel*> open_;  // by round
  std::vector<std::unique_ptr<Parcel>> all_;
  std::vector<Parcel*> spare_;  // arrived: their memory is used again
};

}  // namespace thinwire
