// stream_backend.h: a StreamGroup over a c10d backend whose tensors are in the memory of a device
// (NCCL).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include "thinwire/comm/stream_group.h"

namespace c10d {
class Backend;
}

namespace thinwire {

// The backend must be used by nobody else: its collectives would come in another order on another
// rank. It is shut down with the group.
std::unique_ptr<StreamGroup> make_stream_group(c10::intrusive_ptr<c10d::Backend> backend,
                                               c10::Device device);

}  // namespace thinwire
