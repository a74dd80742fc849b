// put_back.h: copies of device memory that return when a step is void.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "thinwire/core/buffer.h"
#include "thinwire/core/verdict.h"

namespace thinwire {

// Words of 4 bytes: to[i] = from[i], if the step is void.
void put_back_cuda(std::uint32_t* to, const std::uint32_t* from, std::size_t words,
                   const Verdict* verdict, Stream stream);

// A copy of several arrays, for Compressor::keep() and restore(). Their lengths are multiples of 4
// bytes, and the same in both calls.
class KeptCopy {
 public:
  // Allocates the first time.
  void keep(std::span<const Buffer* const> arrays, Device device, Stream stream);
  void restore(std::span<const Buffer* const> arrays, const Verdict* verdict, Stream stream) const;

 private:
  Buffer copy_;
};

}  // namespace thinwire
