// receipt.h: what became of a step on a device: the verdict that kernels raise there, the lengths
// that encoders write, and a copy of both in pinned memory, which the host reads when somebody
// asks. Internal to StreamExchange.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "thinwire/core/buffer.h"
#include "thinwire/core/verdict.h"

namespace thinwire {

class Receipt {
 public:
  // All work is enqueued on `stream`, which must live longer.
  Receipt(const OwnStream& stream, std::size_t buckets);

  // On the device.
  Verdict* verdict() const { return board_.as<Verdict>(); }
  std::uint64_t* written(std::size_t bucket) const { return lengths(board_) + bucket; }

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
  std::uint64_t bytes() const;  // of all buckets

  // Waits for the stream, and has the step skipped, whatever the verdict is.
  void raise() const;

 private:
  static std::uint64_t* lengths(const Buffer& buffer) {
    return reinterpret_cast<std::uint64_t*>(buffer.data() + sizeof(Verdict));
  }

  const OwnStream& stream_;
  std::size_t buckets_;
  Buffer board_;  // a verdict, then a length per bucket
  Buffer copy_;
  Event closed_;
};

// What a code means; a device tells no more.
const char* explain(Code code);

}  // namespace thinwire
