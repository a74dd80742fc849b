// threshold_codec.h: the codec of threshold: every element sends +tau, -tau or nothing. tau is
// given, or steered per layer or bucket so that a given share of the elements is sent.
//
// The payload is the tau of each segment, and blocks of quanta, each in its shorter form
// (wire/quanta.h). So it takes at most two bits per element and a length per block, for every
// gradient.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "thinwire/compress/codec.h"
#include "thinwire/kernels/threshold.h"

namespace thinwire {

struct ThresholdSettings {
  double tau = 0;  // 0: steered
  double density = 0.01;
  bool per_layer = true;
};

// How a bucket is cut: segments share a threshold, and are cut into blocks.
struct ThresholdCut {
  struct Segment {
    std::uint32_t first = 0, count = 0;  // elements; at least one
    std::uint32_t wanted = 0;            // of them
    std::uint32_t first_block = 0, blocks = 0;
  };
  struct Block {
    std::uint32_t first = 0, count = 0;  // elements
    std::uint32_t segment = 0;
    std::uint32_t dense = 0;  // bytes of the dense forms before it
  };

  ThresholdCut(const ThresholdSettings& settings, const Bucket& bucket);

  std::vector<Segment> segments;
  std::vector<Block> blocks;
  std::size_t head = 0, dense = 0;  // bytes: of a payload's head, of all blocks in the dense form
};

class ThresholdCodec final : public Codec {
 public:
  ThresholdCodec(const ThresholdSettings& settings, const Bucket& bucket);

  std::size_t payload_bytes() const override { return cut_.head + cut_.dense; }
  Coded encode(std::span<const float> gradient, std::span<float> residual, std::uint64_t seed,
               Bytes out) override;
  Status add(ConstBytes payload, float share, std::span<float> target) const override;
  Status average(std::span<const ConstBytes> payloads, float share, std::span<float> target,
                 int& culprit) const override;
  void visit_state(StateVisitor& visitor) override;
  void forget() override;

 private:
  struct Tau {
    double next = 0;    // of the next step; 0: unknown
    double before = 0;  // before the last step, for forget()
    float now = 0;
  };

  float estimate(const ThresholdCut::Segment& segment, const float* g, const float* r) const;
  std::size_t close_up(Bytes out) const;
  Status open(ConstBytes payload) const;
  Status add_block(std::size_t k, ConstBytes payload, std::size_t& at, float share,
                   float* target) const;

  ThresholdSettings settings_;
  std::string name_;  // of the bucket, for the state
  ThresholdCut cut_;
  std::vector<Tau> taus_;                // of the segments
  std::vector<ThresholdTally> tallies_;  // of the blocks of the last step
  std::vector<std::uint16_t> lengths_;
};

}  // namespace thinwire
