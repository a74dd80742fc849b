// cost.h: what the collectives of each engine cost, by the messages that it really sends. An engine
// reports this with every collective; traffic() and the emulated link read the same numbers. Not
// for users.
//
// A rank's messages share its uplink and its downlink, so messages in flight at the same time pass
// one after another. `path` is the number of bytes that pass in this way until the last rank is
// done. Headers of the layers below do not count, nor do the few bytes by which ranks agree on a
// call or its lengths.
//
//   engine   all_reduce              all_gather, all_to_all   broadcast        barrier
//   c10d     shares; long: a ring    direct                   binomial tree    rounds
//   mpi      tree to 0, tree back    direct                   flat or a tree   as all_reduce
//   nccl     a ring                  direct                   a chain          agreement only
//
// Messages of 32 kB and more to several ranks at once take 10 % longer than their bytes: TCP flows
// that meet at a link share it unevenly.
//
// c10d: Gloo sends a message after the receiver has said that it is ready, so each collective has
// one latency before its first byte. Receives for later steps are posted early enough to hide
// theirs. The local engine moves nothing between machines, so it reports the cost of c10d.
//
// mpi: what Open MPI 4.1 does (libnbc). An all-reduce in place uses binomial trees, whatever its
// length, and a broadcast is flat for up to 4 ranks. A 16-byte all-reduce, in which the ranks
// agree, runs beside each all-reduce and broadcast. A message over 64 kB (the eager limit over TCP)
// needs a handshake: three latencies instead of one.
//
// nccl: every rank first tells every other rank its lengths over Gloo, which takes two latencies.
// NCCL chooses between rings and trees by itself. A ring sends as many bytes in at least as many
// steps, so this cost of an all-reduce is an upper bound.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/comm/call.h"

namespace thinwire {

// The cost of a completed collective, when the sizes of what arrived are known. Operands matter
// only for gathers and all-to-alls.
Cost c10d_cost(const Call& call, const Operands& operands, int rank, int ranks);
Cost mpi_cost(const Call& call, const Operands& operands, int rank, int ranks);
Cost nccl_cost(const Call& call, const Operands& operands, int rank, int ranks);

// The end of share number `share` of a buffer, in bytes. Shares are whole elements, and the first
// shares are the longest.
std::size_t share_end(std::size_t bytes, std::size_t element, int share, int ranks);

// While one segment of a share is added, the next is on the wire. With more than two ranks, shares
// of 32 kB or more have at least two (c10d/sums.h).
std::size_t segments_of(std::size_t share_bytes, int ranks);

// Whether c10d sums around a ring: with more than two ranks and shares of at least a megabyte.
bool takes_ring(std::size_t bytes, int ranks);

void add(Traffic& sum, const Cost& more);

}  // namespace thinwire
