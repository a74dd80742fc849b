// engine.cc: test programs on the c10d engine, over NCCL. Ranks share the available GPUs, which
// NCCL allows if each rank claims to be on its own machine.
// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/engine.h"

#include <torch/cuda.h>

#include <cstdlib>

#include "tests/comm/c10d/join.h"

namespace thinwire::testing {

std::unique_ptr<Group> make_group(const GroupOptions& options) {
  const Rendezvous at = job();
  setenv("NCCL_HOSTID", ("rank" + std::to_string(at.rank)).c_str(), 1);
  for (const char* transport : {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"})
    setenv(transport, "1", 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  return make_nccl_group(at, at.rank % torch::cuda::device_count(), options);
}

}  // namespace thinwire::testing
