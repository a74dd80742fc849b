// receipt.h: what became of a step on a device: the verdict that kernels raise there, the lengths
// that encoders write, and a copy of both in pinned memory, which the host reads when somebody
// asks. Internal to StreamExchange.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/core/verdict.h"
#include "thinwire/exchange/lane.h"

namespace thinwire {

class Receipt {
 public:
  // All work is enqueued on `stream`, which must live longer.
  Receipt(const OwnStream& stream, const Lanes& lanes, int ranks);

  // On the device. A round has one length, or, for a scatter, one per rank.
  Verdict* verdict() const { return board_.as<Verdict>(); }
  std::uint64_t* written(std::size_t bucket, int round) const {
    return lengths(board_) + first_[bucket][static_cast<std::size_t>(round)];
  }

  // Begins a step: no verdict, no bytes.
  void clear() const;
  // Ends it: `stream` is held back until everything so far is done, and the copy made.
  void close(Stream stream);

  bool done() const { return closed_.done(); }
  // False when the step has not ended within the limit: the device may wait for a rank that is
  // gone, and then for ever.
  bool await(std::chrono::milliseconds limit) const;

  // Of the step that was closed last, when it is done.
  Verdict found() const;
  std::uint64_t bytes() const;  // of all lengths

  // Waits for the stream, and has the step skipped, whatever the verdict is.
  void raise() const;

 private:
  static std::uint64_t* lengths(const Buffer& buffer) {
    return reinterpret_cast<std::uint64_t*>(buffer.data() + sizeof(Verdict));
  }

  const OwnStream& stream_;
  std::vector<std::vector<std::size_t>> first_;  // by bucket and round: its first length
  std::size_t count_ = 0;                        // of all lengths
  Buffer board_;                                 // a verdict, then the lengths
  Buffer copy_;
  Event closed_;
};

// What a code means; a device tells no more.
const char* explain(Code code);

}  // namespace thinwire
