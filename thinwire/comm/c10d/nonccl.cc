// nonccl.cc: stands in for nccl.cc when torch was built without CUDA.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/c10d/c10d.h"
#include "thinwire/core/error.h"

namespace thinwire {

namespace {

[[noreturn]] void absent(int rank) {
  fail("rank ", rank,
       ": this thinwire was built without NCCL (it needs a torch with CUDA, and nccl.h); use Gloo");
}

}  // namespace

std::unique_ptr<Group> make_nccl_group(const Rendezvous& at, int, const GroupOptions&) {
  absent(at.rank);
}

std::unique_ptr<StreamGroup> make_nccl_stream_group(const Rendezvous& at, int,
                                                    const GroupOptions&) {
  absent(at.rank);
}

}  // namespace thinwire
