// powersgd.h: the settings of powersgd, and its compressor in device memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "thinwire/compress/compressor.h"

namespace thinwire {

// The error to keep: this worker's gradient minus the average, or minus its own part of it.
enum class ErrorOf : std::uint8_t { average, local };

struct PowerSgdSettings {
  std::size_t rank = 2;
  double rate = 2;
  std::uint64_t warmup = 0;
  bool warm_start = true;
  ErrorOf error = ErrorOf::average;
  std::uint64_t seed = 0;
};

// Where site.device is a CUDA device (powersgd_cuda.cc, powersgd_nocuda.cc).
std::unique_ptr<Compressor> make_powersgd_cuda(const PowerSgdSettings& settings,
                                               const Bucket& bucket, const Site& site);

}  // namespace thinwire
