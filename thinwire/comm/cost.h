// cost.h: the message patterns of the engines, and what each costs. An engine uses one of these per
// collective; traffic() and the emulated link read the same numbers. Not for users.
//
// A rank's messages share its own uplink and its own downlink, so several that are under way at
// once pass one after the other. `path` adds up what passes so until the last rank is done. Bytes
// of the layers below, and the few with which ranks agree on a call or its lengths, do not count;
// a step that only agrees counts as a step.
//
//   engine       all_reduce             all_gather, all_to_all   broadcast       barrier
//   c10d, local  shares; long: ring     direct                   tree            rounds
//   mpi          tree to 0, tree back   direct                   flat or tree    as all_reduce
//   nccl         1 step, then a ring    1 step, then direct      1 step, chain   1 step
//
// local moves nothing between its threads: it stands for c10d. mpi is what Open MPI 4.1 does
// (libnbc): an all-reduce in place takes binomial trees, whatever its length. A 16-byte all-reduce
// in which the ranks agree goes beside each of its all-reduces and broadcasts. nccl chooses between
// rings and trees by itself; a ring has as many bytes and at least as many steps, so that its price
// is an upper bound.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "thinwire/comm/group.h"

namespace thinwire {

// Where share number `share` of a buffer ends, in bytes: whole elements, and the first shares are
// the longest.
std::size_t share_end(std::size_t bytes, std::size_t element, int share, int ranks);

// While one segment of a share is added, the next is on the wire.
std::size_t segments_of(std::size_t share_bytes);

// All-reduce of c10d. Short sums go by shares. Long ones, of more than two ranks and with shares of
// a megabyte, go around a ring: fewer flows meet at each link, and a step's latency hides behind its
// bytes.
bool takes_ring(std::size_t bytes, int ranks);
Cost sum_cost(std::size_t bytes, std::size_t element, int rank, int ranks);

// All-reduce. Every rank sums one share and sends the sum to all others: two steps. Two ranks swap
// the whole in one.
Cost shares_cost(std::size_t bytes, std::size_t element, int rank, int ranks);

// All-reduce. 2 (N - 1) steps from neighbour to neighbour; after `piece` bytes of a step the next
// one begins, 0: after all of them.
Cost ring_cost(std::size_t bytes, int ranks, std::size_t piece = 0);

// All-reduce. A binomial tree to rank 0, step by step, and one back.
Cost mpi_reduce_cost(std::size_t bytes, int rank, int ranks);

// Broadcast. A binomial tree: a rank that has the bytes sends them to all its children at once.
Cost tree_cost(std::size_t bytes, int root, int rank, int ranks);

// Broadcast. The root sends to all at once; from 5 ranks on a binomial tree.
Cost mpi_broadcast_cost(std::size_t bytes, int root, int rank, int ranks);

// Broadcast. From neighbour to neighbour, in pieces so small that all links work at once.
Cost chain_cost(std::size_t bytes, int root, int rank, int ranks);

// All-gather of so many bytes from each rank, sent to all others at once: all wait for the largest.
Cost gather_cost(std::span<const std::size_t> sizes, int rank);

// All-to-all: pieces to and from each rank, all at once. The busier direction of this rank counts.
Cost pieces_cost(std::span<const std::size_t> sent, std::span<const std::size_t> received,
                 int rank);

// Barrier. As many steps as a binomial tree has.
Cost rounds_cost(int ranks);

// The same with a step before it in which ranks agree.
Cost after_agreement(Cost cost, int ranks);

void add(Traffic& sum, const Cost& more);

}  // namespace thinwire
