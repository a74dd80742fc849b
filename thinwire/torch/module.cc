// module.cc: thinwire._native, the C++ side of the package python/thinwire. A training step need
// not call anything here.
// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <chrono>

#include "thinwire/comm/link.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/torch/bindings.h"
#include "thinwire/torch/decay.h"
#include "thinwire/torch/hook.h"
#include "thinwire/torch/measure.h"

namespace thinwire::ddp {
namespace {

std::shared_ptr<Attachment> make_attachment(c10::intrusive_ptr<c10d::ProcessGroup> process_group,
                                            c10::intrusive_ptr<c10d::Backend> backend,
                                            c10::intrusive_ptr<c10d::Store> store, int host,
                                            double timeout, c10::Device device,
                                            c10::intrusive_ptr<c10d::Backend> data, bool streams,
                                            std::vector<std::pair<std::string, at::Tensor>> names,
                                            const std::string& scheme, const std::string& exchange,
                                            std::size_t fuse_bytes, bool void_as_nan) {
  AttachmentOptions attachment = options_of(scheme, exchange, fuse_bytes);
  attachment.void_as_nan = void_as_nan;
  Connections connections = connections_of(std::move(backend), std::move(store), host, timeout,
                                           device, std::move(data), streams);
  connections.process_group = std::move(process_group);
  check_courier(connections, attachment.config, attachment.exchange);
  return {new Attachment(std::move(connections), std::move(names), std::move(attachment)),
          release<Attachment>};
}

// Any thread may drop it.
std::shared_ptr<py::object> held_object(const py::object& function) {
  return {new py::object(function), [](py::object* object) {
            const py::gil_scoped_acquire gil;
            delete object;
          }};
}

std::function<void(const Step&)> callback_of(const py::object& function) {
  if (function.is_none()) return {};
  const std::shared_ptr<py::object> held = held_object(function);
  return [held](const Step& step) {
    const py::gil_scoped_acquire gil;
    (*held)(dict_of(step));
  };
}

// A Python function that returns factors of momentum; see Attachment::on_begin().
std::function<Factors()> factors_of(const py::object& function) {
  const std::shared_ptr<py::object> held = held_object(function);
  return [held] {
    const py::gil_scoped_acquire gil;
    return (*held)().cast<Factors>();
  };
}

py::dict description_of(const Scheme& scheme) {
  py::dict dict, options;
  for (const Option& option : scheme.options)
    options[py::str(option.name)] = py::make_tuple(option.fallback, option.help);
  dict["name"] = scheme.name;
  dict["summary"] = scheme.summary;
  dict["paper"] = scheme.paper;
  dict["bits"] = scheme.bits;
  dict["reducible"] = scheme.reducible;
  dict["biased"] = scheme.biased;
  dict["feedback"] = scheme.feedback;
  dict["stochastic"] = scheme.stochastic;
  dict["momentum"] = scheme.momentum;
  dict["options"] = options;
  dict["variants"] = scheme.variants;
  return dict;
}

py::dict measured(const std::string& scheme, const Cut& cut,
                  const std::vector<std::vector<at::Tensor>>& gradients) {
  const Config config = config_of(scheme);
  Measured found;
  {
    const py::gil_scoped_release no_gil;
    found = measure(config, cut, gradients);
  }
  py::dict dict;
  dict["payload_bytes"] = found.payload_bytes;
  dict["kept"] = found.kept;
  dict["collectives"] = found.collectives;
  dict["encode_seconds"] = found.encode_seconds;
  dict["decode_seconds"] = found.decode_seconds;
  dict["reducible"] = found.reducible;
  dict["loses"] = found.loses;
  return dict;
}

py::list list_of_schemes() {
  py::list list;
  for (const Scheme* scheme : schemes()) list.append(description_of(*scheme));
  return list;
}

// A call that may wait, and may call back.
template <typename Result>
Result without_gil(Attachment& attachment, Result (Attachment::*method)()) {
  const py::gil_scoped_release no_gil;
  return (attachment.*method)();
}

void bind_attachment(py::module_& module) {
  py::class_<Attachment, std::shared_ptr<Attachment>>(module, "Attachment")
      .def(py::init(&make_attachment), py::kw_only(), py::arg("process_group"),
           py::arg("backend").none(true), py::arg("store").none(true), py::arg("host"),
           py::arg("timeout"), py::arg("device"), py::arg("data").none(true), py::arg("streams"),
           py::arg("names"), py::arg("scheme"), py::arg("exchange"), py::arg("fuse_bytes"),
           py::arg("void_as_nan"))
      .def("finish", &Attachment::finish, NoGil())
      .def("set_prompt", &Attachment::set_prompt, py::arg("on"), NoGil())
      .def(
          "set_scheme",
          [](Attachment& attachment, const std::string& scheme, const std::string& exchange,
             std::size_t fuse_bytes) {
            const AttachmentOptions options = options_of(scheme, exchange, fuse_bytes);
            attachment.set_scheme(options.config, options.exchange);
          },
          py::arg("scheme"), py::arg("exchange"), py::arg("fuse_bytes"), NoGil())
      .def(
          "check_scheme",
          [](const Attachment& attachment, const std::string& scheme, const std::string& exchange,
             std::size_t fuse_bytes) {
            const AttachmentOptions options = options_of(scheme, exchange, fuse_bytes);
            attachment.check_scheme(options.config, options.exchange);
          },
          py::arg("scheme"), py::arg("exchange"), py::arg("fuse_bytes"), NoGil())
      .def(
          "scheme", [](const Attachment& attachment) { return attachment.scheme().str(); }, NoGil())
      .def("on_begin",
           [](Attachment& attachment, const py::object& f) { attachment.on_begin(factors_of(f)); })
      .def("share_kept", &Attachment::share_kept, NoGil())
      .def("set_void_as_nan", &Attachment::set_void_as_nan, py::arg("on"), NoGil())
      .def("set_scale", &Attachment::set_scale, py::arg("scale"), NoGil())
      .def("note_scale", &Attachment::note_scale, NoGil())
      .def(
          "state", [](Attachment& attachment) { return entries_of(attachment.state()); }, NoGil())
      .def("layout", &Attachment::layout, NoGil())
      .def(
          "load",
          [](Attachment& attachment, const Entries& entries, Names layout,
             std::optional<std::uint64_t> steps) {
            attachment.load(state_of(entries), std::move(layout), steps);
          },
          py::arg("entries"), py::arg("layout"), py::arg("steps") = py::none(), NoGil())
      .def("report",
           [](Attachment& attachment) {
             return dict_of(without_gil(attachment, &Attachment::report));
           })
      .def("step_report",
           [](Attachment& attachment) {
             return dict_of(without_gil(attachment, &Attachment::last_step));
           })
      .def(
          "skipped", [](Attachment& attachment) { return attachment.last_step().skipped; }, NoGil())
      .def("not_taken", &Attachment::not_taken, NoGil())
      .def("stream",
           [](const Attachment& attachment) {
             return reinterpret_cast<std::uintptr_t>(attachment.stream().handle);
           })
      .def("taken", &Attachment::taken, NoGil())
      .def("steps", &Attachment::steps, NoGil())
      .def("on_step",
           [](Attachment& attachment, const py::object& f) { attachment.on_step(callback_of(f)); })
      .def("check_replicas", &Attachment::check_replicas, NoGil());
}

PYBIND11_MODULE(_native, module) {
  module.doc() = "thinwire's C++ side; use the package thinwire";
  module.attr("__version__") = THINWIRE_VERSION;
  py::register_exception<Error>(module, "Error", PyExc_RuntimeError).attr("__doc__") =
      "What goes wrong between ranks. The text names the rank, what was expected, what came, and "
      "what to do.";
  bind_attachment(module);
  bind_delayed(module);
  bind_virtual(module);
  module.def(
      "register_hook",
      [](const std::shared_ptr<c10d::Reducer>& reducer, std::shared_ptr<Attachment> attachment,
         bool fill) { register_hook(*reducer, std::move(attachment), fill); },
      py::arg("reducer"), py::arg("attachment"), py::arg("fill"), NoGil());
  module.def(
      "run_plain",
      [](Attachment& attachment, c10d::GradBucket& bucket,
         const std::shared_ptr<c10d::Reducer>& reducer) {
        run_plain(attachment, bucket, reducer.get());
      },
      py::arg("attachment"), py::arg("bucket"), py::arg("reducer").none(true), NoGil());
  module.def(
      "averaged_parameters",
      [](const std::shared_ptr<c10d::Reducer>& reducer) { return averaged_parameters(*reducer); },
      py::arg("reducer"));
  module.def("schemes", &list_of_schemes);
  module.def("has_cuda", &has_cuda);
  module.def("register_scheme", [](std::uintptr_t address) {
    // Python has addresses as numbers. NOLINTNEXTLINE(performance-no-int-to-ptr)
    register_scheme(*reinterpret_cast<const Scheme*>(address));
  });
  module.def("config", [](const std::string& text) { return config_of(text).str(); });
  module.def("parse", [](const std::string& text) {
    const Config config = Config::parse(text);
    return std::pair(config.scheme, config.options);
  });
  module.def("keeps_momentum",
             [](const std::string& text) { return keeps_momentum(Config::parse(text)); });
  module.def("why_on_host",
             [](const std::string& text) { return why_on_host(Config::parse(text)); });
  module.def("average_seconds", [](const std::string& link, int workers, std::uint64_t bytes,
                                   unsigned collectives, bool sums) {
    return average_seconds(Link::parse(link), workers, bytes, collectives, sums);
  });
  module.def("measure", &measured, py::arg("scheme"), py::arg("cut"), py::arg("gradients"));
  module.def("load_file", [](const std::string& path) { return entries_of(load_file(path)); });
  module.def(
      "add_decay",
      [](double momentum, double decay, bool nesterov, double scale, const at::Tensor& weights,
         at::Tensor& memory, const at::Tensor& gradient, at::Tensor& sum) {
        const SgdRule rule{.momentum = static_cast<float>(momentum),
                           .decay = static_cast<float>(decay),
                           .nesterov = nesterov};
        add_decay(rule, static_cast<float>(scale), weights, memory, gradient, sum);
      },
      py::arg("momentum"), py::arg("decay"), py::arg("nesterov"), py::arg("scale"),
      py::arg("weights"), py::arg("memory"), py::arg("gradient"), py::arg("sum"), NoGil());
}

}  // namespace
}  // namespace thinwire::ddp
