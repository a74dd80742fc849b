// carrier.h: moves the encoded bytes of buckets on a device to the other ranks and back. One kind
// hands device memory to a StreamGroup (NCCL); the other stages it through pinned memory for a
// Group of the host (Gloo, MPI, local, an emulated link). Internal to StreamExchange.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "thinwire/comm/group.h"
#include "thinwire/comm/stream_group.h"
#include "thinwire/compress/compressor.h"
#include "thinwire/core/buffer.h"

namespace thinwire {

// One bucket's bytes of one step, in memory of the device. They stay in place until received.
struct Cargo {
  Leg leg;
  Bytes out;                               // leg.bytes: written by encode(), where sums arrive
  Bytes slots;                             // gather: a slot of leg.bytes per rank
  const std::uint64_t* written = nullptr;  // gather: how much of `out` counts
};

class Carrier {
 public:
  virtual ~Carrier() = default;

  // The stream has been given the work that fills `out`. Buckets are sent in one order on all
  // ranks, each once per step, and received in that order after the last one was sent.
  virtual void send(std::size_t bucket, const Cargo& cargo) = 0;

  // Later work of the stream sees what has arrived. A carrier of the host waits for the collective,
  // and throws its error. Another one never waits.
  virtual void receive(std::size_t bucket) = 0;

  virtual Traffic traffic() const = 0;

  // Breaks off collectives that would never end, because a rank is gone.
  virtual void break_off() {}
};

// Both must be destroyed before the group and the stream, when the stream is idle or broken off.
std::unique_ptr<Carrier> make_carrier(StreamGroup& group, const OwnStream& stream,
                                      std::size_t buckets);
std::unique_ptr<Carrier> make_carrier(Group& group, const OwnStream& stream, std::size_t buckets);

}  // namespace thinwire
