// ranged.h: codecs whose payload has a fixed place for every group of elements. Several threads can
// write and read pieces of such a payload. For an average, the payloads of all ranks are added to
// one cache-sized piece after the other, so that memory is read once and not once per rank.
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
  // Groups of `grain` elements, a multiple of 8, are coded independently of each other.
  RangedCodec(std::size_t elements, std::size_t grain) : elements_(elements), grain_(grain) {}

  Coded encode(std::span<const float> gradient, std::span<float> residual, std::uint64_t seed,
               Bytes out) final;
  Status add(ConstBytes payload, float share, std::span<float> target) const final;
  Status average(std::span<const ConstBytes> payloads, float share, std::span<float> target,
                 int& culprit) const final;

 protected:
  // Pointers are those of the whole bucket and of the whole payload, which is payload_bytes() long;
  // residual may be null. Several ranges run at the same time. encode_range() returns whether all x
  // were finite, add_range() whether the bytes are sound.
  virtual bool encode_range(Range range, const float* gradient, float* residual, DrawKey key,
                            std::uint8_t* payload) const = 0;
  virtual bool add_range(Range range, const std::uint8_t* payload, float share,
                         float* target) const = 0;

 private:
  std::size_t elements_, grain_;
};

// The codec of a quantiser whose blocks of `grain` elements follow each other in the payload (qsgd,
// int8). length(rule, n) is the number of bytes of the first n elements.
template <typename Rule, auto length, auto encode_kernel, auto add_kernel>
class BlockCodec final : public RangedCodec {
 public:
  BlockCodec(const Rule& rule, std::size_t grain, std::size_t elements)
      : RangedCodec(elements, grain), rule_(rule), bytes_(length(rule, elements)) {}

  std::size_t payload_bytes() const override { return bytes_; }

 protected:
  bool encode_range(Range range, const float* gradient, float* residual, DrawKey key,
                    std::uint8_t* payload) const override {
    return encode_kernel(rule_, gradient + range.first,
                         residual == nullptr ? nullptr : residual + range.first, range.count, key,
                         static_cast<std::uint32_t>(range.first),
                         payload + length(rule_, range.first));
  }

  bool add_range(Range range, const std::uint8_t* payload, float share,
                 float* target) const override {
    return add_kernel(rule_, payload + length(rule_, range.first), range.count, share,
                      target + range.first);
  }

 private:
  Rule rule_;
  std::size_t bytes_;
};

}  // namespace thinwire
