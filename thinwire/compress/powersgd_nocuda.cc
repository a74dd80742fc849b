// powersgd_nocuda.cc: powersgd on a device, in a build without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/powersgd.h"
#include "thinwire/core/error.h"

namespace thinwire {

std::unique_ptr<Compressor> make_powersgd_cuda(const PowerSgdSettings&, const Bucket&,
                                               const Site&) {
  fail("this build of thinwire has no CUDA; build it where nvcc is found (-DTHINWIRE_CUDA=ON)");
}

}  // namespace thinwire
