// carrier.h: moves a bucket's messages of one round to the other ranks and back. There are three:
// host memory goes to a Group as it is; device memory goes to a StreamGroup (NCCL), or through
// pinned memory to a Group of the host (Gloo, MPI, local, an emulated link). Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>

#include "thinwire/comm/group.h"
#include "thinwire/comm/stream_group.h"
#include "thinwire/core/buffer.h"
#include "thinwire/exchange/passage.h"

namespace thinwire {

class Carrier {
 public:
  virtual ~Carrier() = default;

  // Starts the collective of a passage, whose bytes are there, or will be when `stream` reaches
  // this point. All ranks send in one order. When wait() of the result has returned, later work of
  // the stream finds what has arrived. A passage carries one message at a time.
  virtual Pending send(Passage& passage, const Written& written, Stream stream) = 0;

  // Whether wait() keeps the host waiting for other ranks.
  virtual bool waits() const = 0;

  virtual Traffic traffic() const = 0;

  // Lets the caller use the host's group, if that carries messages. It waits until all of them are
  // issued, so that ranks which call it after the same messages agree on the order.
  virtual std::unique_lock<std::mutex> hold() { return {}; }

  // Breaks off collectives that would never end, because a rank is gone.
  virtual void break_off() {}
};

// For host memory.
std::unique_ptr<Carrier> make_carrier(Group& group);
// For memory of the stream's device. They must be destroyed before the group and the stream, when
// the stream is idle or broken off.
std::unique_ptr<Carrier> make_carrier(StreamGroup& group, const OwnStream& stream);
std::unique_ptr<Carrier> make_carrier(Group& group, const OwnStream& stream);
// The same for messages that are in flight for many steps: any number of them at once. Its thread
// polls instead of waiting, which costs less CPU time and finds later messages at once.
std::unique_ptr<Carrier> make_patient_carrier(Group& group, const OwnStream& stream);

}  // namespace thinwire
