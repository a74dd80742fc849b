// passage.h: one round of one bucket: the memory for its messages, its collective, and the result.
// An Exchange, a StreamExchange and a delayed average all send their buckets this way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "thinwire/comm/group.h"
#include "thinwire/comm/stream_group.h"
#include "thinwire/compress/compressor.h"
#include "thinwire/core/buffer.h"

namespace thinwire {

// What an encoder has written. The host knows a number of bytes, or those of the pieces of a
// scatter. Of an encoder on a device it knows only where they will be.
struct Written {
  std::size_t bytes = 0;
  std::span<const std::size_t> pieces = {};
  const std::uint64_t* on_device = nullptr;
};

// Its memory is allocated once, and again when messages become longer (a warm-up ends). It must
// stay in place until the collective is done.
class Passage {
 public:
  Passage() = default;  // in memory of the host
  // In memory of the stream's device, or in pinned memory beside it. The stream must live longer.
  Passage(const OwnStream& stream, Place place) : stream_(&stream), place_(place) {}

  // Ranks of one process write their messages of a round where all of them read: into the memory of
  // the passage of rank 0, which begins first and must stay in place. `learns`: this rank decodes
  // the round itself.
  void share(Passage& first, int rank, int ranks, bool learns);

  // Prepares a round. The encoder writes its bytes into the result. With leg.in_place that is
  // `values`, the memory of the bucket.
  Bytes begin(const Leg& leg, int ranks, void* values);

  // Starts the collective of host memory, after the encoder wrote.
  Pending start(Group& group, const Written& written, Stream stream);
  // Enqueues the collective of device memory.
  void start(StreamGroup& group, Stream stream) const;

  // The same among ranks of one process (meeting.h). post() notes the lengths of what the encoder
  // wrote. When all ranks have posted, messages have arrived, and rank 0 has the sum in out(), from
  // where the others receive() it.
  void post(const Written& written);
  void receive(ConstBytes reduced);

  // The result, when the collective is done. Sizes are known only of a Group's.
  Inbox inbox() const;

  const Leg& leg() const { return leg_; }
  Bytes out() const { return out_; }
  // One slot of leg().bytes per rank; empty where the result arrives in out().
  Bytes slots() const { return slots_; }
  bool has_slots() const;
  // The number of lengths that an encoder on a device leaves: none for a sum or a maximum.
  std::size_t lengths(int ranks) const;

 private:
  Bytes room(Buffer& buffer, std::size_t bytes) const;
  Bytes shared_room(std::size_t message);

  const OwnStream* stream_ = nullptr;
  Place place_ = Place::host;
  Passage* first_ = nullptr;            // of rank 0, where ranks share memory
  std::size_t shared_by_ = 0, me_ = 0;  // then: how many they are, and this rank
  bool learns_ = true;
  Leg leg_;
  Bytes out_, slots_;
  ConstBytes reduced_;
  std::size_t stride_ = 0;  // from a rank's messages to those of the next
  Buffer payload_, arrived_;
  std::vector<std::size_t> sizes_;  // of what arrived; shared: of all ranks, in their order
};

// The texts of errors that an Exchange and a StreamExchange share.
inline constexpr const char* not_taken =
    "; the step was not taken, restart from the last checkpoint";
inline constexpr const char* untold =
    ": a scheme found its gradient beyond the limit, but did not tell the others";
// A round that could not be decoded. `rank` sent the bytes; -1: unknown.
std::string round_fault(const std::string& where, int rank, const std::string& what);

}  // namespace thinwire
