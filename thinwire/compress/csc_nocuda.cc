// csc_nocuda.cc: csc and randomk on a device, in a build without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/csc.h"
#include "thinwire/compress/randomk.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

[[noreturn]] void refuse() {
  fail("this build of thinwire has no CUDA; build it where nvcc is found (-DTHINWIRE_CUDA=ON)");
}

}  // namespace

std::unique_ptr<Compressor> make_csc_cuda(const CscSettings&, const Bucket&, const Site&) {
  refuse();
}

std::unique_ptr<Compressor> make_randomk_cuda(const RandomkSettings&, const Bucket&, const Site&) {
  refuse();
}

}  // namespace thinwire
