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
  // iid: all workers share all examples, shuffled anew each epoch. contiguous: each has one stretch
  // of the data, equal in length within one example. dirichlet: of each class, worker w has the
  // share p[w] drawn from Dirichlet(alpha), so that workers differ in their classes and in how many
  // examples they have; the smaller alpha, the more.
  enum class Kind { iid, contiguous, dirichlet };

  Kind kind = Kind::iid;
  double alpha = 0;  // of dirichlet

  // "iid", "contiguous", "dirichlet:0.5"; throws an Error that shows the forms.
  static Partition parse(std::string_view text);
  std::string str() const;
};

// A partition at work. The same on every rank; with iid or not, every example belongs to exactly
// one worker in an epoch, or for good.
class Shares {
 public:
  // `classes` has the class of every example, from 0 on, and may be empty unless the partition is
  // dirichlet. Throws where an example has no class, or there are fewer examples than workers.
  Shares(const Partition& partition, std::int64_t examples,
         const std::vector<std::int64_t>& classes, std::uint64_t seed, int workers);

  // The examples of one worker's batch: a function of (step, rank, batch), so that a resumed run
  // goes on exactly. A worker with a share of its own passes through it again and again, shuffled
  // anew each time; a batch may end one pass and begin the next.
  std::vector<std::int64_t> batch(std::uint64_t step, int rank, std::int64_t batch) const;

  // By worker; empty for iid.
  const std::vector<std::vector<std::int64_t>>& shares() const { return shares_; }

 private:
  std::int64_t examples_;
  std::uint64_t seed_;
  int workers_;
  std::vector<std::vector<std::int64_t>> shares_;
};

}  // namespace thinwire::train
