// c10d.h: torch.distributed as an engine: a Group over c10d, by Gloo or NCCL, or over a backend
// that a program hands over.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "thinwire/comm/group.h"

// Whoever makes or uses one includes its header, which takes the compiler twelve seconds.
namespace c10d {
class Backend;
}

namespace thinwire {

// Whichever way a group of several is made, the process ignores SIGPIPE from then on, unless it
// chose something for that signal itself: Gloo's write to a lost peer would end it, where an error
// is to name the peer.

// Over a backend that the caller made (or took from Python): gloo or mpi, whose receives take
// shorter messages too; another one is an error. The backend must be used by nobody else meanwhile.
// Without a store there is no roll call: an error names the rank whose message did not come, which
// in a ring need not be the one at fault.
std::unique_ptr<Group> make_c10d_group(c10::intrusive_ptr<c10d::Backend> backend,
                                       const GroupOptions& options = {});

// Where the workers of a job meet: torchrun's MASTER_ADDR and MASTER_PORT.
struct Rendezvous {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  int rank = 0;
  int world = 1;
  int listener = -1;  // rank 0: a socket that listens there already, to be taken over; -1: none
};

// Gloo over TCP, on the network that leads to the host (or GLOO_SOCKET_IFNAME). Rank 0 holds the
// store, under torchrun its agent does. A world of 1 meets nobody. Throws an Error that names the
// address when the workers do not meet within the time limit.
std::unique_ptr<Group> make_gloo_group(const Rendezvous& rendezvous,
                                       const GroupOptions& options = {});

// NCCL between GPUs, each rank with one of its own. Buffers are still bytes of the host: each
// collective copies them up and down again. Ranks meet and agree over Gloo, as above; so a silent
// rank, or one at odds with us, is named. Throws an Error where thinwire was built without (torch
// has no CUDA, or nccl.h was not found), and when ranks share a GPU.
std::unique_ptr<Group> make_nccl_group(const Rendezvous& rendezvous, int gpu,
                                       const GroupOptions& options = {});

// The backend of a Gloo group alone, for a program that wants c10d's own collectives. Ranks that
// make several groups or backends at one address must make them in the same order.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const Rendezvous& rendezvous,
                                                    const GroupOptions& options = {});

}  // namespace thinwire
