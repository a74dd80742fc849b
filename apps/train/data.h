// data.h: the data sets that `thinwire train` reads, and which examples a worker sees at each step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn.h>
#include <torch/utils.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/train/models.h"

namespace thinwire::train {

// Determines what augmentation draws.
struct Draw {
  uint64_t seed = 0, step = 0;
  int rank = 0;
};

class Data {
 public:
  virtual ~Data() = default;

  virtual Problem problem() const = 0;
  // The number of training examples (images, sequences or utterances) over all workers: one epoch.
  virtual int64_t train_examples() const = 0;

  // The class of every training example. Empty if examples have none (text, speech).
  virtual std::vector<int64_t> train_classes() const { return {}; }

  // These training examples, in this order.
  virtual Batch train_batch_of(const std::vector<int64_t>& examples, const Draw& draw) const = 0;

  // The batch of one worker in one step, if all workers share all examples. It is a function of
  // (seed, step, rank, world) alone, so that a resumed run continues exactly. Over an epoch the
  // workers together see every example once, in an order that is shuffled anew each epoch. The
  // last, incomplete round of an epoch is left out. For other partitions see data_partition.h.
  Batch train_batch(uint64_t seed, uint64_t step, int rank, int world, int64_t batch) const;

  // The test set in order, in batches of at most `batch`.
  virtual int64_t test_batches(int64_t batch) const = 0;
  virtual Batch test_batch(int64_t index, int64_t batch) const = 0;
};

// "digits", "stdlib", "cifar10:DIR", "idx:DIR", "text:PATH" (words), "chars:PATH" (characters),
// "an4:DIR" and "tones" (speech), "synthetic[:CxHxW:CLASSES]", "scaled:SIZE:DATA" (other images, at
// SIZE x SIZE). `sequence` is the length of a language model's sequences. Throws an Error that
// names the file, what was expected and what was found (missing, truncated, wrong magic), and what
// to do.
std::unique_ptr<Data> open_data(const std::string& spec, int64_t sequence);

// One line per kind of data, for --help.
std::vector<std::pair<std::string, std::string>> data_kinds();

}  // namespace thinwire::train
