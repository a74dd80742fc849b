// c10d.h: torch.distributed as an engine: a Group over c10d with Gloo, with NCCL, or over a backend
// that the program provides.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <c10/util/intrusive_ptr.h>

#include "thinwire/comm/group.h"
#include "thinwire/comm/stream_group.h"

// Forward declarations: c10d's own headers cost twelve seconds of compile time. Include them where
// you create or use these objects.
namespace c10d {
class Backend;
}

namespace thinwire {

// Every function below that makes a group of several ranks sets SIGPIPE to ignored for the whole
// process, unless the program has chosen a disposition itself. Otherwise Gloo's write to a lost
// peer would end the process instead of raising an error that names the peer.

// A group over a backend that the caller made (or took from Python). The backend must be gloo or
// mpi, whose receives accept shorter messages; any other is an error. Nobody else may use the
// backend meanwhile. Without a store there is no roll call: an error names the rank whose message
// is missing, which in a ring may not be the rank at fault.
std::unique_ptr<Group> make_c10d_group(c10::intrusive_ptr<c10d::Backend> backend,
                                       const GroupOptions& options = {});

// Where the workers of a job meet: torchrun's MASTER_ADDR and MASTER_PORT.
struct Rendezvous {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  int rank = 0;
  int world = 1;
  int listener = -1;  // rank 0: a socket that already listens there; the group owns it; -1: none
};

// Gloo over TCP, on the network that leads to the host (or on GLOO_SOCKET_IFNAME). Rank 0 holds the
// store; under torchrun the agent holds it. A world of 1 connects to nobody. Throws an Error that
// names the address if the workers do not meet within the time limit.
std::unique_ptr<Group> make_gloo_group(const Rendezvous& rendezvous,
                                       const GroupOptions& options = {});

// NCCL between GPUs, one GPU per rank. Buffers are still host memory: each collective copies them
// to the device and back. Ranks meet and agree over Gloo, as above, so an error names a rank that
// is silent or disagrees. Throws an Error if thinwire was built without NCCL (torch has no CUDA, or
// nccl.h was not found), and if ranks share a GPU.
std::unique_ptr<Group> make_nccl_group(const Rendezvous& rendezvous, int gpu,
                                       const GroupOptions& options = {});

// NCCL from GPU to GPU, in streams: buffers are device memory. The same conditions and errors as
// above; `at` has met before, for a Gloo group, so that all ranks are there.
std::unique_ptr<StreamGroup> make_nccl_stream_group(const Rendezvous& rendezvous, int gpu,
                                                    const GroupOptions& options = {});

// Only the backend of a Gloo group, for a program that wants c10d's own collectives. If ranks make
// several groups or backends at one address, they must make them in the same order.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const Rendezvous& rendezvous,
                                                    const GroupOptions& options = {});

}  // namespace thinwire
