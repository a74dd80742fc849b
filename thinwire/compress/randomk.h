// randomk.h: the settings of randomk, and its compressor in device memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "thinwire/compress/compressor.h"
#include "thinwire/core/random.h"
#include "thinwire/kernels/limit.h"

namespace thinwire {

struct RandomkSettings {
  double density = 0.25;
  std::size_t block = 1;
  std::uint64_t seed = 0;
  MemoryRule rule;

  // The seed of the draws of a step: the same on all workers.
  std::uint64_t stream(std::uint64_t step, const Bucket& bucket) const {
    return random_at(random_at(seed, step), bucket.id);
  }
};

// Where site.device is a CUDA device (randomk_cuda.cc, csc_nocuda.cc).
std::unique_ptr<Compressor> make_randomk_cuda(const RandomkSettings& settings, const Bucket& bucket,
                                              const Site& site);

}  // namespace thinwire
