// ranged.h: codecs whose payload has a fixed place for every group of elements. Such a payload can
// be written and read in pieces: by several threads, and by all ranks' payloads in turn over a piece
// of the average that fits into a cache, so that memory is walked once and not once per rank.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/compress/codec.h"
#include "thinwire/kernels/draw.h"

namespace thinwire {

// Elements [first, first + count) of a bucket; `first` is a multiple of the codec's grain.
struct Range {
  std::size_t first = 0;
  std::size_t count = 0;
};

class RangedCodec : public Codec {
 public:
  // `grain` elements, a multiple of 8, are coded independently of the others.
  RangedCodec(std::size_t elements, std::size_t grain) : elements_(elements), grain_(grain) {}

  Coded encode(std::span<const float> gradient, std::span<float> residual, std::uint64_t seed,
               Bytes out) final;
  Status add(ConstBytes payload, float share, std::span<float> target) const final;
  Status average(std::span<const ConstBytes> payloads, float share, std::span<float> target,
                 int& culprit) const final;

 protected:
  // Pointers are those of the whole bucket and payload, whose length is payload_bytes(); residual
  // may be null. Pieces run at the same time. encode_range() says whether all x were finite,
  // add_range() whether the bytes are sound.
  virtual bool encode_range(Range range, const float* gradient, float* residual, DrawKey key,
                            std::uint8_t* payload) const = 0;
  virtual bool add_range(Range range, const std::uint8_t* payload, float share,
                         float* target) const = 0;

 private:
  std::size_t elements_, grain_;
};

}  // namespace thinwire
