// csc.h: the settings of csc, the bytes of its steps, and its compressor in device memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "thinwire/compress/compressor.h"
#include "thinwire/kernels/limit.h"
#include "thinwire/memory/csc_grid.h"
#include "thinwire/memory/summed.h"

namespace thinwire {

struct CscSettings {
  double density = 0.1;
  std::size_t chunk = 32768;
  bool previous = false;
  std::uint64_t warmup = 0;
  MemoryRule rule;
  DType values = DType::f32;

  bool is_warmup(std::uint64_t step) const { return step < warmup; }
  DType norms() const { return previous ? values : DType::f32; }
};

// How a step is sent: the same on all ranks.
struct CscPlan {
  CscPlan(const CscSettings& settings, const CscGrid& grid, std::uint64_t step);

  std::size_t wanted = 0;  // chunks
  std::size_t values = 0;  // elements of these, packed
  std::size_t value_bytes = 0, norm_bytes = 0;
  bool previous = false;
  DType dtype = DType::f32;  // of the values

  Leg leg(int round) const;
};

// Small buckets have smaller chunks. Where possible, a chunk is a multiple of 16 elements.
CscGrid csc_grid(std::size_t elements, std::size_t chunk);

// Where site.device is a CUDA device (csc_cuda.cc, csc_nocuda.cc).
std::unique_ptr<Compressor> make_csc_cuda(const CscSettings& settings, const Bucket& bucket,
                                          const Site& site);

}  // namespace thinwire
