// compressor.cc: what a scheme need not do.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/compressor.h"

#include "thinwire/core/error.h"

namespace thinwire {
namespace {

constexpr const char* no_second =
    "this scheme cannot compress averages on CUDA yet; give exchange split a second=SCHEME that "
    "can, such as topk";

}  // namespace

void Compressor::keep(const Turn&) { fail(no_second); }

void Compressor::restore(const Turn&) { fail(no_second); }

}  // namespace thinwire
