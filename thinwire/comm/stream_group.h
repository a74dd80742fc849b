// stream_group.h: collectives on device memory, ordered by a stream. A call only enqueues: work
// that comes later in the stream sees the result, and the host never waits. All ranks issue the
// same calls in the same order.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "thinwire/comm/group.h"

namespace thinwire {

class StreamGroup {
 public:
  virtual ~StreamGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;
  virtual Traffic traffic() const = 0;

  // In place: `data` becomes the sum or maximum over all ranks, bit-identical on all of them.
  virtual void all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) = 0;

  // Every rank sends all of `mine`, of the same length; rank r's bytes arrive at
  // slots[r * mine.size()].
  virtual void all_gather(ConstBytes mine, Bytes slots, Stream stream) = 0;

  // Rank r gets slot r of `mine`, which has size() slots of the same length on all ranks; rank r's
  // bytes arrive in slot r of `slots`.
  virtual void all_to_all(ConstBytes mine, Bytes slots, Stream stream) = 0;

  // Breaks off what is under way and would never end, because a rank is gone. The group is unusable
  // afterwards.
  virtual void break_off() {}
};

// A group of one, for memory of that device (or of the CPU).
std::unique_ptr<StreamGroup> make_solo_stream_group(Device device);

}  // namespace thinwire
