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

#include "thinwire/core/options.h"
#include "thinwire/core/state.h"
#include "thinwire/torch/attachment.h"
#include "thinwire/torch/courier.h"
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
// The same for a scheme and how it is exchanged.
AttachmentOptions options_of(const std::string& scheme, const std::string& exchange,
                             std::size_t fuse_bytes);

// Groups over backends of our own; without `backend`, of one worker. `data` is between devices.
// `link`: an emulated one, for measurements.
Connections connections_of(c10::intrusive_ptr<c10d::Backend> backend,
                           c10::intrusive_ptr<c10d::Store> store, int host, double timeout,
                           c10::Device device, c10::intrusive_ptr<c10d::Backend> data, bool streams,
                           const std::string& link = "");

// Ends an attachment without the GIL: backends end by joining threads, some of which may want it.
template <typename T>
void release(T* attachment) {
  if (PyGILState_Check() == 0) return delete attachment;
  const py::gil_scoped_release no_gil;
  delete attachment;
}

// The class DelayedAttachment.
void bind_delayed(py::module_& module);
// The class VirtualWorkers.
void bind_virtual(py::module_& module);

}  // namespace thinwire::ddp
