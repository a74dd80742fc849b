// lane.h: a bucket in an exchange: its compressor, its gradient in this step, and the memory of its
// messages. With the checks that an Exchange and a StreamExchange have in common. Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "thinwire/compress/compressor.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/state.h"
#include "thinwire/exchange/passage.h"
#include "thinwire/exchange/setup.h"

namespace thinwire {

struct Lane {
  Lane(Bucket which, std::shared_ptr<Compressor> scheme, const OwnStream& stream);

  bool is_last(int round) const { return round + 1 == compressor->rounds(); }

  Bucket bucket;
  std::shared_ptr<Compressor> compressor;  // shared by the steps of a bucket that are in flight
  TensorView gradient{};
  Stream stream{};
  Event given;                     // the caller's stream has computed the gradient
  bool ready = false;              // submitted
  bool encoded = false;            // its memory contains this step's gradient
  std::deque<Passage> passages{};  // by round
};

// Lanes stay in place: collectives keep pointers into them.
class Lanes : public std::deque<Lane> {
 public:
  // Throws unless buckets are sound, numbered from 0 without gaps, and have a compressor each.
  Lanes(int rank, std::vector<Bucket> buckets, SharedCompressors compressors,
        const OwnStream& stream);

  std::vector<Bucket> buckets() const;
  bool needs_norm() const { return needs_norm_; }

  // "rank 1, step 20, bucket 3"
  std::string where(std::size_t bucket) const { return place_of(rank_, step, bucket); }

  // Throws unless this gradient may be submitted now.
  void check_gradient(std::size_t bucket, const TensorView& gradient) const;
  // The same, and takes it, if `stream` has computed it already.
  void submit(std::size_t bucket, const TensorView& gradient, Stream stream);
  // Throws unless all buckets are submitted.
  void check_all_ready() const;
  void end_step();

  // Shows a visitor the number of steps, and the memories. Throws when a load leaves a number that
  // cannot be. A new number must be agreed upon.
  void visit_state(StateVisitor& visitor);

  std::uint64_t step = 0;
  bool agreed = false;  // all ranks are at this step

 private:
  int rank_;
  bool needs_norm_ = false;
};

}  // namespace thinwire
