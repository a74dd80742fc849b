// bindings.h: conversions between our values and Python's, shared by the files of the module.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "thinwire/comm/group.h"
#include "thinwire/core/options.h"
#include "thinwire/core/state.h"
#include "thinwire/torch/report.h"

namespace thinwire::ddp {

using NoGil = py::call_guard<py::gil_scoped_release>;

// One entry of a state: its share, and a tensor or a number.
using Value = std::variant<at::Tensor, double>;
using Entries = std::map<std::string, std::pair<int, Value>>;

Entries entries_of(const State& state);
State state_of(const Entries& entries);

py::dict dict_of(const Report& report);
py::dict dict_of(const Step& step);

// Refuses unknown schemes, unknown options and bad values.
Config config_of(const std::string& scheme);

// A group over a backend of our own; without one, a group of one worker.
std::shared_ptr<Group> group_of(c10::intrusive_ptr<c10d::Backend> backend,
                                c10::intrusive_ptr<c10d::Store> store, int host, double timeout);

// The class DelayedAttachment.
void bind_delayed(py::module_& module);

}  // namespace thinwire::ddp
