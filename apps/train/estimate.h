// estimate.h: the time of a step as workers on machines of their own would see it, from what
// virtual workers did one after the other. No torch here.
//
// A step waits for the slowest worker in computing and in encoding, for its slowest server and for
// every message, and nothing overlaps, although a real exchange overlaps backward. What an engine
// itself takes per collective is left out.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "apps/train/crew.h"
#include "thinwire/exchange/exchange.h"

namespace thinwire::train {

class StepEstimate {
 public:
  explicit StepEstimate(const Crew& crew) : crew_(crew), ranks_(crew.size()) {}

  // For each rank: the seconds of its forward and backward, and its report after the step.
  void add(int rank, double computed, const Report& report) {
    Rank& its = ranks_[crew_.place(rank)];
    its.computed = computed;
    its.encoding = report.encode_seconds - its.before.encode_seconds;
    its.decoding = report.decode_seconds - its.before.decode_seconds;
    its.before = report;
  }

  // Of the step that all ranks have been added for. `exchanged` is the time of all of them in the
  // exchange: what is neither encoding nor decoding, such as a sum, they share.
  double seconds(double exchanged, double update, double link) const {
    double computing = 0, encoding = 0, decoding = 0, server = 0;
    for (int rank = crew_.begin; rank < crew_.end; ++rank) {
      const Rank& its = ranks_[crew_.place(rank)];
      exchanged -= its.encoding + its.decoding;
      // What all ranks decode alike takes only the first of them time.
      const double own = std::max(its.decoding, ranks_[0].decoding);
      if (crew_.serves(rank)) {
        server = std::max(server, its.encoding + own);
        continue;
      }
      computing = std::max(computing, its.computed);
      encoding = std::max(encoding, its.encoding);
      decoding = std::max(decoding, own);
    }
    // Each rank sums a share of the elements; of two ranks each sums all.
    const double sums = std::max(0.0, exchanged) / (crew_.world == 2 ? 1 : crew_.world);
    return computing + encoding + decoding + server + sums + update + link;
  }

 private:
  struct Rank {
    double computed = 0, encoding = 0, decoding = 0;  // seconds of the step
    Report before;
  };

  Crew crew_;
  std::vector<Rank> ranks_;
};

}  // namespace thinwire::train
