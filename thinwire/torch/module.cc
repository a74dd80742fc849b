// module.cc: thinwire._native, what Python sees of all this. The package python/thinwire makes it
// pleasant; nothing here is called in a training step except by choice.
// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "thinwire/compress/registry.h"
#include "thinwire/core/error.h"
#include "thinwire/torch/bindings.h"
#include "thinwire/torch/decay.h"
#include "thinwire/torch/hook.h"

namespace thinwire::ddp {
namespace {

ExchangeOptions exchange_of(const std::string& kind, std::size_t fuse_bytes) {
  ExchangeOptions options;
  options.kind = ExchangeKind::parse(kind);
  if (options.kind.form == ExchangeKind::Form::server)
    fail("exchange '", kind, "': every rank of DDP computes gradients, none can be a server; use ",
         "split");
  options.fuse_bytes = fuse_bytes;
  return options;
}

LinkOptions options_of(const std::string& scheme, const std::string& exchange,
                       std::size_t fuse_bytes) {
  LinkOptions options{config_of(scheme), exchange_of(exchange, fuse_bytes), false};
  check_fit(options.exchange.kind, options.config);
  return options;
}

std::shared_ptr<Link> make_link(c10::intrusive_ptr<c10d::ProcessGroup> process_group,
                                c10::intrusive_ptr<c10d::Backend> backend,
                                c10::intrusive_ptr<c10d::Store> store, int host, double timeout,
                                std::vector<std::pair<std::string, at::Tensor>> names,
                                const std::string& scheme, const std::string& exchange,
                                std::size_t fuse_bytes, bool void_as_nan) {
  LinkOptions link = options_of(scheme, exchange, fuse_bytes);
  link.void_as_nan = void_as_nan;
  Wires wires{std::move(process_group), store, nullptr};
  wires.group = group_of(std::move(backend), std::move(store), host, timeout);
  return std::make_shared<Link>(std::move(wires), std::move(names), std::move(link));
}

// May be let go by any thread.
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

// A Python function that is asked for factors of momentum; see Link::on_begin().
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

py::list list_of_schemes() {
  py::list list;
  for (const Scheme* scheme : schemes()) list.append(description_of(*scheme));
  return list;
}

void bind_link(py::module_& module) {
  py::class_<Link, std::shared_ptr<Link>>(module, "Link")
      .def(py::init(&make_link), py::kw_only(), py::arg("process_group"),
           py::arg("backend").none(true), py::arg("store").none(true), py::arg("host"),
           py::arg("timeout"), py::arg("names"), py::arg("scheme"), py::arg("exchange"),
           py::arg("fuse_bytes"), py::arg("void_as_nan"))
      .def("finish", &Link::finish, NoGil())
      .def(
          "set_scheme",
          [](Link& link, const std::string& scheme, const std::string& exchange,
             std::size_t fuse_bytes) {
            const LinkOptions options = options_of(scheme, exchange, fuse_bytes);
            link.set_scheme(options.config, options.exchange);
          },
          py::arg("scheme"), py::arg("exchange"), py::arg("fuse_bytes"), NoGil())
      .def(
          "check_scheme",
          [](const Link& link, const std::string& scheme, const std::string& exchange,
             std::size_t fuse_bytes) {
            const LinkOptions options = options_of(scheme, exchange, fuse_bytes);
            link.check_scheme(options.config, options.exchange);
          },
          py::arg("scheme"), py::arg("exchange"), py::arg("fuse_bytes"), NoGil())
      .def(
          "scheme", [](const Link& link) { return link.scheme().str(); }, NoGil())
      .def("on_begin", [](Link& link, const py::object& f) { link.on_begin(factors_of(f)); })
      .def("share_kept", &Link::share_kept, NoGil())
      .def("set_void_as_nan", &Link::set_void_as_nan, py::arg("on"), NoGil())
      .def("set_scale", &Link::set_scale, py::arg("scale"), NoGil())
      .def(
          "state", [](Link& link) { return entries_of(link.state()); }, NoGil())
      .def("layout", &Link::layout, NoGil())
      .def(
          "load",
          [](Link& link, const Entries& entries, Names layout, std::optional<std::uint64_t> steps) {
            link.load(state_of(entries), std::move(layout), steps);
          },
          py::arg("entries"), py::arg("layout"), py::arg("steps") = py::none(), NoGil())
      .def("report", [](const Link& link) { return dict_of(link.report()); })
      .def("step_report", [](const Link& link) { return dict_of(link.last_step()); })
      .def(
          "skipped", [](const Link& link) { return link.last_step().skipped; }, NoGil())
      .def(
          "steps", [](const Link& link) { return link.last_step().number; }, NoGil())
      .def("on_step", [](Link& link, const py::object& f) { link.on_step(callback_of(f)); })
      .def("check_replicas", &Link::check_replicas, NoGil());
}

PYBIND11_MODULE(_native, module) {
  module.doc() = "thinwire's C++ side; use the package thinwire";
  py::register_exception<Error>(module, "Error", PyExc_RuntimeError);
  bind_link(module);
  bind_delayed(module);
  module.def(
      "register_hook",
      [](const std::shared_ptr<c10d::Reducer>& reducer, std::shared_ptr<Link> link) {
        register_hook(*reducer, std::move(link));
      },
      py::arg("reducer"), py::arg("link"), NoGil());
  module.def(
      "run_plain",
      [](Link& link, c10d::GradBucket& bucket, const std::shared_ptr<c10d::Reducer>& reducer) {
        run_plain(link, bucket, reducer.get());
      },
      py::arg("link"), py::arg("bucket"), py::arg("reducer").none(true), NoGil());
  module.def(
      "averaged_parameters",
      [](const std::shared_ptr<c10d::Reducer>& reducer) { return averaged_parameters(*reducer); },
      py::arg("reducer"));
  module.def("schemes", &list_of_schemes);
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
