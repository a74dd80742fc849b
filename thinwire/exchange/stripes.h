// stripes.h: cuts a bucket into stripes of about the same length, one per owner. The cuts depend
// only on the bucket, so they are the same on all ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "thinwire/core/view.h"

namespace thinwire {

// A parameter in a stripe, or a part of one. There is one Piece per parameter of the stripe's
// bucket, in the same order.
struct Piece {
  std::size_t parameter = 0;  // its index in the whole bucket
  bool whole = true;
};

struct Stripe {
  std::size_t first = 0;  // element of the bucket where it starts
  Bucket bucket;          // the stripe as a bucket of its own; cut parameters are "NAME[from:to]"
  std::vector<Piece> pieces;

  std::size_t count() const { return bucket.elements(); }
};

// A cut is made between parameters where one ends within an eighth of a stripe, else between the
// rows of a matrix if they are that short, else at a multiple of 64. Stripes of tiny buckets may be
// empty. The buckets of the stripes have the numbers 2 * (`stripes` * bucket + stripe), modulo
// 2^16. Odd numbers are for the owners' averages, so that their frames and random draws differ.
std::vector<Stripe> cut(const Bucket& bucket, std::size_t stripes);

}  // namespace thinwire
