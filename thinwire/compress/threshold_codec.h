// threshold_codec.h: the codec of threshold: every element sends +tau, -tau or nothing. tau is
// given, or steered per layer or bucket so that a given share of the elements is sent.
//
// The payload is a form byte, the tau of each segment, and then either two bits per element (dense)
// or a sparse frame of signs, whichever is smaller. So the size is at most that of the dense form,
// for every gradient.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "thinwire/compress/codec.h"
#include "thinwire/kernels/threshold.h"
#include "thinwire/wire/frame.h"

namespace thinwire {

struct ThresholdSettings {
  double tau = 0;  // 0: steered
  double density = 0.01;
  bool per_layer = true;
};

class ThresholdCodec final : public Codec {
 public:
  ThresholdCodec(const ThresholdSettings& settings, const Bucket& bucket);

  std::size_t payload_bytes() const override;
  Coded encode(std::span<const float> gradient, std::span<float> residual, std::uint64_t seed,
               Bytes out) override;
  Status add(ConstBytes payload, float share, std::span<float> target) const override;
  void visit_state(StateVisitor& visitor) override;
  void forget() override;

 private:
  struct Segment {
    std::size_t first = 0, count = 0;  // elements; at least one
    std::size_t bits = 0;              // offset of its planes after the head of a payload
    double tau = 0;                    // tau of the next step; 0: unknown
    double before = 0;                 // tau before the last step, for forget()
  };

  std::size_t head_bytes() const { return 1 + segments_.size() * sizeof(float); }
  float tau_for(const Segment& segment, const float* g, const float* r) const;
  ThresholdTally sweep(const Segment& segment, float tau, const float* g, float* r,
                       Bytes planes) const;
  void steer(Segment& segment, float tau, const ThresholdTally& tally, bool keeps) const;
  std::size_t encode_sparse_form(ConstBytes planes);
  Status add_dense(ConstBytes planes, std::span<const float> taus, std::span<float> target) const;
  Status add_sparse(ConstBytes frame, std::span<const float> taus, std::span<float> target) const;

  ThresholdSettings settings_;
  std::string name_;  // of the bucket, for the state
  std::vector<Segment> segments_;
  std::size_t elements_ = 0, planes_ = 0;  // of the bucket; bytes of the dense form's bits
  std::vector<std::uint32_t> index_;
  std::vector<float> sign_;
  std::vector<std::byte> frame_;
};

}  // namespace thinwire
