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
#include "thinwire/core/buffer.h"
#include "thinwire/exchange/passage.h"

namespace thinwire {

// One collective made of several legs.
struct Parcel {
  struct Rider {
    std::size_t lane = 0;  // the bucket's lane in the exchange
    Leg leg;
    Bytes bytes;             // where the encoder wrote
    std::size_t offset = 0;  // of its bytes in the parcel
  };

  // Copies the riders' bytes into one message, in the stream.
  void pack(const OwnStream& stream, int ranks);
  // A rider's part of the result. With in_place it is copied to where the encoder wrote.
  Inbox unpack(const OwnStream& stream, const Rider& rider) const;

  int round = 0;
  Leg leg;  // the collective of all riders
  std::vector<Rider> riders;
  Passage passage;
};

// Owns all parcels until it is destroyed, because a failed collective may still write into them.
class Fuser {
 public:
  // Legs of fewer than `bytes` wait; with 0 none waits. Parcels are in memory of the stream's
  // device, where each rider starts at a multiple of `alignment`.
  Fuser(std::size_t bytes, const OwnStream& stream, std::size_t alignment = 1)
      : bytes_(bytes), stream_(stream), alignment_(alignment) {}

  bool takes(const Leg& leg) const {
    const bool reduced = leg.reduction == Reduction::sum || leg.reduction == Reduction::max;
    return reduced && leg.bytes < bytes_;
  }

  // Adds a leg to the open parcel of its round. Returns a parcel that must be sent now, or null.
  Parcel* add(std::size_t lane, int round, const Leg& leg, Bytes bytes);

  // The lowest round that has an open parcel, or -1. close() returns that parcel, to be sent as it
  // is.
  int lowest_open() const { return open_.empty() ? -1 : open_.begin()->first; }
  Parcel* close(int round);

  // Call it when the parcel has arrived and all its riders are decoded.
  void release(Parcel* parcel) { spare_.push_back(parcel); }

 private:
  Parcel* open(int round, const Leg& leg);

  std::size_t bytes_;
  const OwnStream& stream_;
  std::size_t alignment_;
  std::map<int, Parcel*> open_;  // by round
  std::vector<std::unique_ptr<Parcel>> all_;
  std::vector<Parcel*> spare_;  // decoded parcels, whose memory is reused
};

}  // namespace thinwire
