// stripes.h: a bucket cut into stripes, one per owner, of about the same length. The cuts follow
// from the bucket alone, so all ranks make the same ones.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "thinwire/core/view.h"

namespace thinwire {

// A parameter, or the part of one that lies in a stripe: as many as the stripe's bucket has
// parameters, in the same order.
struct Piece {
  std::size_t parameter = 0;  // its place in the whole bucket
  bool whole = true;
};

struct Stripe {
  std::size_t first = 0;  // element of the bucket where it starts
  Bucket bucket;          // the stripe as a bucket of its own; cut parameters are "NAME[from:to]"
  std::vector<Piece> pieces;

  std::size_t count() const { return bucket.elements(); }
};

// A cut falls between parameters where one ends within an eighth of a stripe, else between the rows
// of a matrix if they are that short, else at a multiple of 64. Stripes of tiny buckets may be
// empty. Their buckets' numbers are 2 * (`stripes` * bucket + stripe), modulo 2^16; the odd ones are
// left for the owners' averages: frames tell apart what they carry, and so do random draws.
std::vector<Stripe> cut(const Bucket& bucket, std::size_t stripes);

}  // namespace thinwire
