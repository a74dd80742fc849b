// staged.h: a group of host bytes over a backend whose tensors live on a device (NCCL). Internal to
// the engine.
//
// A collective has two steps. First the ranks tell each other, by messages over Gloo, that they are
// ready and how much they will send. The call is part of the message's tag, so the messages of
// ranks that disagree never match; they time out, and the roll call names the ranks, as in every
// group of this engine. Only then the bytes go to the device, through the backend's collective and
// back. So the backend, which would hang or corrupt memory, never sees ranks that disagree, and it
// moves only the actual bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "thinwire/comm/c10d/join.h"

namespace thinwire::torch_engine {

// Makes the backend, once all ranks have joined and know the store.
using MakeBackend =
    std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>& store)>;

// The backend's tensors are on `device`. A group of one rank connects to nobody and
// makes no backend.
std::unique_ptr<Group> make_staged_group(const Rendezvous& at, const GroupOptions& options,
                                         c10::Device device, const std::string& name,
                                         const MakeBackend& make);

}  // namespace thinwire::torch_engine
