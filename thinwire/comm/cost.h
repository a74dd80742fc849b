// cost.h: what the collectives of each engine cost, by the messages that it really sends. An engine
// states this with every collective; traffic() and the emulated link read the same numbers. Not for
// users.
//
// A rank's messages share its own uplink and its own downlink, so several that are under way at
// once pass one after the other. `path` adds up what passes so until the last rank is done. Bytes
// of the layers below, and the few with which ranks agree on a call or its lengths, do not count.
//
//   engine   all_reduce              all_gather, all_to_all   broadcast        barrier
//   c10d     shares; long: a ring    direct                   binomial tree    rounds
//   mpi      tree to 0, tree back    direct                   flat or a tree   as all_reduce
//   nccl     a ring                  direct                   a chain          agreement only
//
// c10d: Gloo sends a message when the receiver has said that it is ready, so each collective has
// one latency before its first byte. Receives for later steps are posted early and say so in time.
// local moves nothing between its threads: it stands for c10d.
//
// mpi: what Open MPI 4.1 does (libnbc): an all-reduce in place takes binomial trees, whatever its
// length, and a broadcast is flat up to 4 ranks. A 16-byte all-reduce, in which the ranks agree,
// goes beside each all-reduce and broadcast. A message beyond 64 kB (the eager limit over TCP) asks
// before it sends: three latencies instead of one.
//
// nccl: every rank tells every other its lengths over Gloo first, which takes two latencies. NCCL
// chooses between rings and trees by itself; a ring has as many bytes and at least as many steps,
// so the price of its all-reduce is an upper bound.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/comm/call.h"

namespace thinwire {

// Of a collective that is done: the sizes of what arrived are known. Operands count only in gathers
// and all-to-alls.
Cost c10d_cost(const Call& call, const Operands& operands, int rank, int ranks);
Cost mpi_cost(const Call& call, const Operands& operands, int rank, int ranks);
Cost nccl_cost(const Call& call, const Operands& operands, int rank, int ranks);

// Where share number `share` of a buffer ends, in bytes: whole elements, and the first shares are
// the longest.
std::size_t share_end(std::size_t bytes, std::size_t element, int share, int ranks);

// While one segment of a share is added, the next is on the wire.
std::size_t segments_of(std::size_t share_bytes);

// Whether c10d sums around a ring: more than two ranks, and shares of a megabyte.
bool takes_ring(std::size_t bytes, int ranks);

void add(Traffic& sum, const Cost& more);

}  // namespace thinwire
