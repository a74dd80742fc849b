// nocuda.cc: the kernels of a GPU in a build without CUDA: each one says so.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/error.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/ledger.h"
#include "thinwire/kernels/limit.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/kernels/put_back.h"
#include "thinwire/kernels/stripe.h"

namespace thinwire {
namespace {

[[noreturn]] void no_cuda() {
  fail("this build of thinwire has no CUDA; build it where nvcc is found (-DTHINWIRE_CUDA=ON)");
}

}  // namespace

void cast_cuda(DType, const void*, DType, void*, std::size_t, float, Verdict*, Stream) {
  no_cuda();
}

void fill_void_cuda(DType, void*, std::size_t, float, const Verdict*, Stream) { no_cuda(); }

void put_back_cuda(std::uint32_t*, const std::uint32_t*, std::size_t, const Verdict*, Stream) {
  no_cuda();
}

void open_stripes_cuda(Verdict*, std::size_t, const Verdict*, Stream) { no_cuda(); }
void join_stripes_cuda(Verdict*, const Verdict*, const std::int32_t*, std::size_t, std::uint32_t,
                       Stream) {
  no_cuda();
}
void owned_mean_cuda(float*, std::size_t, const Verdict*, Stream) { no_cuda(); }

void squared_norm_cuda(DType, const void*, std::size_t, double*, double*, Stream) { no_cuda(); }
void add_pairs_cuda(const double*, std::size_t, double*, double*, Stream) { no_cuda(); }
void add_norms_cuda(const double*, std::size_t, double*, Stream) { no_cuda(); }

void ledger_move_cuda(const LedgerMove&, const LedgerArrays&, const LedgerPiece*, std::size_t,
                      const float*, LedgerNumbers*, float*, Stream) {
  no_cuda();
}
void ledger_follow_cuda(const LedgerMove&, const LedgerArrays&, const float*, const LedgerNumbers*,
                        float*, float*, Stream) {
  no_cuda();
}
std::size_t ledger_scratch(std::size_t) { no_cuda(); }
void ledger_acknowledge_cuda(const LedgerAcknowledge&, const LedgerArrays&, const float*,
                             const float*, const float*, const float*, double*, const Verdict*,
                             Stream) {
  no_cuda();
}
void ledger_listen_cuda(double, const double*, LedgerNumbers*, const Verdict*, Stream) {
  no_cuda();
}
void ledger_share_cuda(LedgerNumbers*, float*, std::uint64_t, bool, Stream) { no_cuda(); }
void ledger_clip_cuda(double, const double*, const double*, float*, Stream) { no_cuda(); }
void ledger_copy_cuda(LedgerCopy, const LedgerPiece*, std::size_t, float*, Stream) { no_cuda(); }
void ledger_digest_cuda(const float*, std::size_t, std::uint64_t*, Stream) { no_cuda(); }

}  // namespace thinwire
