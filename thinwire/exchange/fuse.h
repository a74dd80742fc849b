// fuse.h: lazy all-reduce (GradientFlow, Sun et al. 2019): small legs wait for each other and are
// sent as one collective, so that a model with many small tensors pays few latencies. It works for
// every scheme whose legs are sums or maxima.
//
// Legs of one round are collected by bucket number. They are sent when they have reached the
// threshold, when a leg of another type or operation follows, or when no other leg can join. This
// depends only on bucket numbers and legs, so the order of collectives is the same on all ranks.
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
    std::size_t lane = 0;  // the bucket's lane in the exchange
    Leg leg;
    std::size_t offset = 0;  // offset of its bytes in `data`
  };

  int round = 0;
  Leg leg;  // the collective of all riders
  std::vector<Rider> riders;
  std::vector<std::byte> data;
};

// Owns all parcels until it is destroyed, because a failed collective may still write into them.
class Fuser {
 public:
  // Legs of fewer than `bytes` wait; with 0 none waits.
  explicit Fuser(std::size_t bytes) : bytes_(bytes) {}

  bool takes(const Leg& leg) const {
    const bool reduced = leg.reduction == Reduction::sum || leg.reduction == Reduction::max;
    return reduced && leg.bytes < bytes_;
  }

  // Copies the bytes of a leg into the open parcel of its round. Returns a parcel that must be sent
  // now, or null.
  Parcel* add(std::size_t lane, int round, const Leg& leg, ConstBytes bytes);

  // The lowest round that has an open parcel, or -1. close() returns that parcel, to be sent as it
  // is.
  int lowest_open() const { return open_.empty() ? -1 : open_.begin()->first; }
  Parcel* close(int round);

  // Call it when the parcel has arrived and all its riders are decoded.
  void release(Parcel* parcel) { spare_.push_back(parcel); }

 private:
  Parcel* open(int round, const Leg& leg);

  std::size_t bytes_;
  std::map<int, Parcel*> open_;  // by round
  std::vector<std::unique_ptr<Parcel>> all_;
  std::vector<Parcel*> spare_;  // decoded parcels, whose memory is reused
};

}  // namespace thinwire
