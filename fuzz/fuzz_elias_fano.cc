// fuzz_elias_fano.cc: the elias_fano decoder agrees with the reference decoder on any bytes.
// SPDX-License-Identifier: Apache-2.0
#include "fuzz/index_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  thinwire::fuzz::check_index_decoder(thinwire::IndexCoder::elias_fano, data, size);
  return 0;
}
