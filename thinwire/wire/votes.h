// votes.h: the payload of a bucket of votes (-1, 0 or +1): one bit per element, and a second bit in
// chunks that contain zeros.
//
//     flags   a bit per chunk of 4096 elements: it has zeros
//     signs   a bit per element: -1
//     zeros   for each flagged chunk, in order, a bit per element: 0; its sign bit is then 0
//
// Each part starts at a byte; padding bits are zero. A bucket without zeros takes 1.0002 bits per
// element.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/core/status.h"
#include "thinwire/core/view.h"

namespace thinwire {

inline constexpr std::size_t votes_chunk = 4096;

// The largest size of the payload, and the offset of the signs in it.
std::size_t votes_bound(std::size_t elements);
std::size_t votes_signs_at(std::size_t elements);

// Completes a payload whose signs are in place. `zeros` has a bit for every element of the bucket.
// Returns the payload's bytes.
std::size_t seal_votes(std::size_t elements, ConstBytes zeros, Bytes payload);

// Reads a payload chunk by chunk. After a successful open(), call next() once per chunk.
class VoteReader {
 public:
  // Checks everything; the payload must be exactly as long as it says.
  Status open(std::size_t elements, ConstBytes payload);

  struct Chunk {
    ConstBytes signs, zeros;  // zeros: empty where there are none
  };
  Chunk next();

 private:
  std::size_t chunk_bits(std::size_t chunk) const;

  std::size_t elements_ = 0, chunk_ = 0;
  ConstBytes flags_, signs_, zeros_;
};

}  // namespace thinwire
