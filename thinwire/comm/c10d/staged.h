// staged.h: a group of host bytes over a backend whose tensors live on a device (NCCL). Internal to
// the engine.
//
// A collective has two steps. First the ranks tell each other, by messages over Gloo, that they are
// there and how much they will send: the call is part of the message's tag, so that ranks at odds
// never meet, time out and are named by the roll call, as in every group of this engine. Only then
// the bytes go up to the device, through the backend's collective and down again. So the backend,
// which would hang or damage memory, never sees ranks that disagree, and moves the actual bytes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <c10/core/Device.h>

#include "thinwire/comm/c10d/join.h"

namespace thinwire::torch_engine {

// Makes the backend, when all ranks are there and know the store.
using MakeBackend =
    std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>& store)>;

// The tensors of the backend are on `device`. Of one rank: a group that meets nobody and makes
// none.
std::unique_ptr<Group> make_staged_group(const Rendezvous& at, const GroupOptions& options,
                                         c10::Device device, const std::string& name,
                                         const MakeBackend& make);

}  // namespace thinwire::torch_engine
