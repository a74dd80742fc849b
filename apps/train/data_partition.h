// data_partition.h: which training examples a worker has, and which of them it sees in a step. No
// torch here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace thinwire::train {

struct Partition {
  // iid: all workers share all examples, shuffled anew each epoch. contiguous: each worker has one
  // contiguous range of the data, equal in length within one example. dirichlet: of each class,
  // worker w has the share p[w] drawn from Dirichlet(alpha), so workers differ in their classes and
  // in their number of examples. The smaller alpha, the more they differ.
  enum class Kind { iid, contiguous, dirichlet };

  Kind kind = Kind::iid;
  double alpha = 0;  // for dirichlet

  // "iid", "contiguous", "dirichlet:0.5"; throws an Error that shows the forms.
  static Partition parse(std::string_view text);
  std::string str() const;
};

// A partition applied to data. It is the same on every rank. Every example belongs to exactly one
// worker: per epoch with iid, permanently otherwise.
class Shares {
 public:
  // `classes` has the class of every example, from 0 on. It may be empty unless the partition is
  // dirichlet. Throws if an example has no class, or if there are fewer examples than workers.
  Shares(const Partition& partition, std::int64_t examples,
         const std::vector<std::int64_t>& classes, std::uint64_t seed, int workers);

  // The examples of one worker's batch: a function of (step, rank, batch), so that a resumed run
  // continues exactly. A worker with its own share passes through it repeatedly, shuffled anew each
  // time. A batch may end one pass and begin the next.
  std::vector<std::int64_t> batch(std::uint64_t step, int rank, std::int64_t batch) const;

  // By worker. Empty for iid.
  const std::vector<std::vector<std::int64_t>>& shares() const { return shares_; }

 private:
  std::int64_t examples_;
  std::uint64_t seed_;
  int workers_;
  std::vector<std::vector<std::int64_t>> shares_;
};

}  // namespace thinwire::train
