// sparse_nocuda.cc: topk and dgc on a device, in a build without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/sparse.h"
#include "thinwire/core/error.h"

namespace thinwire {

std::unique_ptr<Compressor> make_sparse_cuda(const SparseSettings&, const Bucket&, const Site&) {
  fail("this build of thinwire has no CUDA; build it where nvcc is found (-DTHINWIRE_CUDA=ON)");
}

}  // namespace thinwire
