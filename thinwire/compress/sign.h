// sign.h: the codec of onebit and efsign: one bit per element, and for each group of elements the
// levels that its bits stand for. With x = g + r, the payload is the levels of all groups (f32),
// then the bits of each group (1: x < 0). Every group starts at a byte.
//
//     two_means   high = mean of the x >= 0, low = mean of the x < 0 (0 for an empty side)
//     magnitude   high = mean |x|, low = -high: one float
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <memory>
#include <vector>

#include "thinwire/compress/codec.h"
#include "thinwire/compress/memory_options.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/cuda.h"
#include "thinwire/core/element.h"
#include "thinwire/kernels/sign.h"

namespace thinwire {

enum class SignLevels : std::uint8_t { two_means, magnitude };

// The levels of a group: what a bit of 0 and of 1 stands for.
struct SignPair {
  float high = 0, low = 0;
};

// The levels of a group of `count` elements with these sums, which are finite.
THINWIRE_HD inline SignPair sign_levels(SignLevels kind, const SignSums& sums, std::size_t count) {
  if (kind == SignLevels::magnitude) {
    const auto mean = static_cast<float>((sums.high - sums.low) / static_cast<double>(count));
    return {mean, mean == 0 ? 0.0f : -mean};
  }
  const std::size_t highs = count - sums.lows;
  return {highs == 0 ? 0.0f : static_cast<float>(sums.high / static_cast<double>(highs)),
          sums.lows == 0 ? 0.0f : static_cast<float>(sums.low / static_cast<double>(sums.lows))};
}

// Whether an encoder could have written these levels beside bits with and without ones and zeros.
// Lower levels of magnitudes are not sent.
THINWIRE_HD inline bool sign_levels_fit(SignLevels kind, const SignPair& levels, bool ones,
                                        bool zeros) {
  const auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
  if (!is_finite(levels.high) || bits(levels.high) >> 31 != 0) return false;
  if (kind == SignLevels::magnitude) return levels.high != 0 || !ones;
  if (!ones && bits(levels.low) != 0) return false;
  if (ones && !(levels.low < 0 && is_finite(levels.low))) return false;
  return zeros || levels.high == 0;
}

// Elements [first, first + count) of the bucket, at least one, which share their levels.
struct SignGroup {
  std::size_t first = 0, count = 0;
};

// Appends [first, first + count) as groups of nearly equal length, at most `longest` each.
void cut_evenly(std::size_t first, std::size_t count, std::size_t longest,
                std::vector<SignGroup>& groups);

class SignCodec final : public Codec {
 public:
  // The groups are in order and fill the bucket.
  SignCodec(SignLevels levels, const std::vector<SignGroup>& groups);

  static std::size_t payload_bytes(SignLevels levels, const std::vector<SignGroup>& groups);

  std::size_t payload_bytes() const override { return bytes_; }
  Coded encode(std::span<const float> gradient, std::span<float> residual, std::uint64_t seed,
               Bytes out) override;
  Status add(ConstBytes payload, float share, std::span<float> target) const override;
  Status average(std::span<const ConstBytes> payloads, float share, std::span<float> target,
                 int& culprit) const override;

 private:
  struct Place {
    SignGroup group;
    std::size_t levels = 0, bits = 0;  // offsets in the payload
  };

  bool encode_group(const Place& place, const float* g, float* r, Bytes out) const;
  void write_levels(const SignPair& levels, std::byte* to) const;
  Status read_group(const Place& place, ConstBytes payload, SignPair& levels) const;
  // The first payload that is not sound, and the reason.
  struct Fault {
    int payload = 0;
    Status status;
  };
  void average_group(const Place& place, std::span<const ConstBytes> payloads, float share,
                     float* target, std::vector<SignPair>& levels, Fault& fault) const;

  SignLevels levels_;
  std::vector<Place> places_;
  std::vector<std::size_t> runs_;  // the first place of each unit of parallel work, and the end
  std::size_t bytes_ = 0;
};

// The bytes that a rank sends per step with these groups, and the compressor.
std::size_t sign_frame_bytes(SignLevels levels, const std::vector<SignGroup>& groups);
std::unique_ptr<Compressor> make_sign_compressor(std::uint8_t scheme, SignLevels levels,
                                                 const std::vector<SignGroup>& groups,
                                                 const Options& options, const Bucket& bucket,
                                                 const Site& site);

// A scheme of this codec. `scheme` has what differs: names, texts, variants and the option `group`,
// by which groups_of(options, bucket) finds the groups.
template <std::uint8_t id, SignLevels levels, auto groups_of>
Scheme describe_sign_scheme(Scheme scheme) {
  scheme.id = id;
  scheme.biased = scheme.feedback = scheme.momentum = scheme.cuda = true;
  const std::vector<Option> memory = memory_options("momentum");
  scheme.options.insert(scheme.options.begin(), memory.begin(), memory.end());
  scheme.bytes = [](const Options& options, const Bucket& bucket) {
    return sign_frame_bytes(levels, groups_of(options, bucket));
  };
  scheme.traffic = 20.125;
  scheme.make = [](const Options& options, const Bucket& bucket, const Site& site) {
    return make_sign_compressor(id, levels, groups_of(options, bucket), options, bucket, site);
  };
  return scheme;
}

}  // namespace thinwire
