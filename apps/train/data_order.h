// data_order.h: which examples a worker sees in a step: a keyed permutation that stores nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "thinwire/core/error.h"
#include "thinwire/core/random.h"

namespace thinwire::train {

// One stream per purpose, so that order and augmentation are unrelated for equal seeds.
enum class Stream : std::uint64_t {
  order = 1,
  augmentation = 2,
  pattern = 3,
  noise = 4,
  label = 5,
  share = 6
};

constexpr std::uint64_t stream_key(std::uint64_t seed, Stream stream) {
  return random_at(random_at(seed, 0), static_cast<std::uint64_t>(stream));
}

// The image of `position` under the permutation of [0, count) that `key` selects: a Feistel network
// over the next power of four, repeated until it lands inside (fewer than four times on average).
constexpr std::uint64_t permuted(std::uint64_t key, std::uint64_t position, std::uint64_t count) {
  const auto half = (std::bit_width(count - 1) + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  do {
    std::uint64_t left = position >> half, right = position & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t mixed = left ^ (random_at(key, round << 32 | right) & mask);
      left = right;
      right = mixed;
    }
    position = left << half | right;
  } while (position >= count);
  return position;
}

// The examples of one worker's batch, as Data::train_batch promises.
inline std::vector<std::int64_t> batch_examples(std::int64_t examples, std::uint64_t seed,
                                                std::uint64_t step, int rank, int world,
                                                std::int64_t batch) {
  if (batch < 1 || world < 1 || rank < 0 || rank >= world) {
    fail("expected a batch of at least 1 and a rank below the number of workers, got batch ", batch,
         ", rank ", rank, " of ", world);
  }
  // Divides, because batch * world may overflow.
  const std::int64_t rounds = examples / world / batch;
  if (rounds == 0) {
    fail("rank ", rank, ": one step takes a batch of ", batch, " on each of ", world,
         " workers, but the training data has only ", examples,
         " examples; use a smaller batch or fewer workers");
  }
  const auto per_epoch = static_cast<std::uint64_t>(rounds);
  const std::uint64_t key = random_at(stream_key(seed, Stream::order), step / per_epoch);
  const auto first =
      static_cast<std::uint64_t>(batch) *
      (step % per_epoch * static_cast<std::uint64_t>(world) + static_cast<std::uint64_t>(rank));
  std::vector<std::int64_t> chosen(static_cast<std::size_t>(batch));
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    chosen[i] =
        static_cast<std::int64_t>(permuted(key, first + i, static_cast<std::uint64_t>(examples)));
  }
  return chosen;
}

}  // namespace thinwire::train
