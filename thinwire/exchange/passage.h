// passage.h: the buffers of one bucket for one round, its collective, and the result. An Exchange
// and a delayed average both send their buckets this way.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "thinwire/comm/group.h"
#include "thinwire/compress/compressor.h"

namespace thinwire {

// The operation of a leg that is a sum or a maximum.
ReduceOp reduce_op(const Leg& leg);

// The buffers are reused from round to round. They must stay in place until the collective is done.
class Passage {
 public:
  // Prepares a round. The encoder writes its bytes into the result. With leg.in_place that is
  // `values`, the memory of the bucket.
  Bytes begin(const Leg& leg, int ranks, void* values);

  // Starts the collective, after the encoder wrote `bytes` bytes; `pieces` are those of a scatter.
  Pending start(Group& group, std::size_t bytes, std::span<const std::size_t> pieces,
                Stream stream);

  // The result, when the collective is done.
  Inbox inbox() const;

  const Leg& leg() const { return leg_; }

 private:
  bool has_slots() const;

  Leg leg_;
  Bytes out_;
  std::vector<std::byte> payload_, slots_;
  std::vector<std::size_t> sizes_;
};

}  // namespace thinwire
