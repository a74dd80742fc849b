// codec_nocuda.cc: quantisers on a device, in a build without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/codec_cuda.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

[[noreturn]] void no_cuda() {
  fail("this build of thinwire has no CUDA; build it where nvcc is found (-DTHINWIRE_CUDA=ON)");
}

}  // namespace

std::unique_ptr<Compressor> make_coded_cuda(std::uint8_t, std::uint64_t, const MemoryRule&,
                                            std::unique_ptr<CudaCodec>, const Bucket&,
                                            const Site&) {
  no_cuda();
}
std::unique_ptr<CudaCodec> int8_codec_cuda(const Int8Rule&, std::size_t, Device) { no_cuda(); }
std::unique_ptr<CudaCodec> qsgd_codec_cuda(const QsgdRule&, std::size_t, Device) { no_cuda(); }
std::unique_ptr<CudaCodec> natural_codec_cuda(std::size_t, Device) { no_cuda(); }
std::unique_ptr<CudaCodec> sign_codec_cuda(SignLevels, const std::vector<SignGroup>&, int, Device) {
  no_cuda();
}
std::unique_ptr<CudaCodec> threshold_codec_cuda(const ThresholdSettings&, const Bucket&, int, bool,
                                                bool, Device) {
  no_cuda();
}

std::unique_ptr<Compressor> make_signum_cuda(float, bool, const Bucket&, const Site&) { no_cuda(); }
std::unique_ptr<Compressor> make_terngrad_cuda(double, bool, std::uint64_t, const Bucket&,
                                               const Site&) {
  no_cuda();
}

}  // namespace thinwire
