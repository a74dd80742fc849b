// lane.cc: checks of what is submitted, and state.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/lane.h"

#include <utility>

#include "thinwire/core/error.h"

namespace thinwire {

Lane::Lane(Bucket which, std::shared_ptr<Compressor> scheme, const OwnStream& stream)
    : bucket(std::move(which)), compressor(std::move(scheme)), given(stream.device()) {
  for (int round = 0; round < compressor->rounds(); ++round)
    passages.emplace_back(stream, place_on(stream.device()));
}

Lanes::Lanes(int rank, std::vector<Bucket> buckets, SharedCompressors compressors,
             const OwnStream& stream)
    : rank_(rank) {
  check_buckets(buckets, compressors.size());
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    needs_norm_ = needs_norm_ || compressors[i]->needs_norm();
    emplace_back(std::move(buckets[i]), std::move(compressors[i]), stream);
  }
}

std::vector<Bucket> Lanes::buckets() const {
  std::vector<Bucket> all;
  for (const Lane& lane : *this) all.push_back(lane.bucket);
  return all;
}

void Lanes::check_gradient(std::size_t bucket, const TensorView& gradient) const {
  if (bucket >= size()) fail(where(bucket), ": there are ", size(), " buckets, numbered from 0");
  const Lane& lane = (*this)[bucket];
  if (lane.ready) fail(where(bucket), ": submitted twice in one step; call finish() first");
  if (gradient.count != lane.bucket.elements())
    fail(where(bucket), ": expected ", lane.bucket.elements(), " elements, got ", gradient.count);
}

void Lanes::submit(std::size_t bucket, const TensorView& gradient, Stream stream) {
  check_gradient(bucket, gradient);
  Lane& lane = (*this)[bucket];
  lane.gradient = gradient;
  lane.stream = stream;
  lane.ready = true;
}

void Lanes::check_all_ready() const {
  for (const Lane& lane : *this) {
    if (!lane.ready)
      fail(where(lane.bucket.id),
           ": not submitted in this step; submit every bucket before finish()");
  }
}

void Lanes::end_step() {
  for (Lane& lane : *this) lane.ready = lane.encoded = false;
}

void Lanes::visit_state(StateVisitor& visitor) {
  const std::uint64_t before = step;
  visit_step(visitor, step);
  agreed = agreed && step == before;
  for (Lane& lane : *this) lane.compressor->visit_state(visitor);
}

}  // namespace thinwire
