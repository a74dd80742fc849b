// module_delayed.cc: what Python sees of delayed averaging. The optimizer's hook calls finish_step()
// in every step; all work in it, and all waiting, is without the GIL.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/bindings.h"

#include <optional>

#include "thinwire/delay/fit.h"
#include "thinwire/torch/delayed_link.h"

namespace thinwire::ddp {
namespace {

// None where the optimizer has no moment of a parameter yet.
using Given = std::vector<std::optional<at::Tensor>>;

Moments moments_of(const Given& given) {
  Moments moments;
  for (const auto& moment : given) moments.push_back(moment.value_or(at::Tensor()));
  return moments;
}

DelayOptions options_of(const std::string& delay, std::uint64_t local_steps,
                        const std::string& correction, double momentum, std::uint64_t check_every) {
  DelayOptions options;
  options.parse_delay(delay);
  options.parse_correction(correction);
  options.local_steps = local_steps;
  options.momentum = momentum;
  options.check_every = check_every;
  options.check();
  return options;
}

std::shared_ptr<DelayedLink> make_delayed(c10::intrusive_ptr<c10d::Backend> backend,
                                          c10::intrusive_ptr<c10d::Store> store, int host,
                                          double timeout, const Cut& cut, const Given& moments,
                                          const std::string& scheme, const std::string& delay,
                                          std::uint64_t local_steps, const std::string& correction,
                                          double momentum, std::uint64_t check_every) {
  const py::gil_scoped_release no_gil;
  const DelayOptions options = options_of(delay, local_steps, correction, momentum, check_every);
  auto group = group_of(std::move(backend), std::move(store), host, timeout);
  return std::make_shared<DelayedLink>(std::move(group), cut, moments_of(moments),
                                       config_of(scheme), options);
}

py::dict report_of(const DelayedLink& link) {
  py::dict dict = dict_of(link.report());
  dict["messages"] = link.messages();
  dict["in_flight"] = link.in_flight();
  dict["delay"] = link.delay();
  return dict;
}

}  // namespace

void bind_delayed(py::module_& module) {
  // Refuses settings that clash, before there is a link. What depends on the model's shapes is
  // found when the link is made.
  module.def(
      "check_late",
      [](const std::string& scheme, const std::string& delay, std::uint64_t local_steps,
         const std::string& correction, bool moments) {
        check_fit(options_of(delay, local_steps, correction, 0, 0), config_of(scheme), moments);
      },
      py::arg("scheme"), py::arg("delay"), py::arg("local_steps"), py::arg("correction"),
      py::arg("moments"));
  py::class_<DelayedLink, std::shared_ptr<DelayedLink>>(module, "DelayedLink")
      .def(py::init(&make_delayed), py::kw_only(), py::arg("backend").none(true),
           py::arg("store").none(true), py::arg("host"), py::arg("timeout"), py::arg("cut"),
           py::arg("moments"), py::arg("scheme"), py::arg("delay"), py::arg("local_steps"),
           py::arg("correction"), py::arg("momentum"), py::arg("check_every"))
      .def("finite", &DelayedLink::finite, NoGil())
      .def(
          "fill", [](DelayedLink& link, const Given& moments) { link.fill(moments_of(moments)); },
          py::arg("moments"), NoGil())
      .def(
          "finish_step",
          [](DelayedLink& link, const Given& moments, bool skipped) {
            link.finish_step(moments_of(moments), skipped);
          },
          py::arg("moments"), py::arg("skipped"), NoGil())
      .def(
          "drain", [](DelayedLink& link, const Given& moments) { link.drain(moments_of(moments)); },
          py::arg("moments"), NoGil())
      .def("leave_anchor", &DelayedLink::leave_anchor, py::arg("what"), NoGil())
      .def("show_anchor", &DelayedLink::show_anchor, NoGil())
      .def("hide_anchor", &DelayedLink::hide_anchor, NoGil())
      .def(
          "state",
          [](DelayedLink& link, const Given& moments) {
            return entries_of(link.state(moments_of(moments)));
          },
          py::arg("moments"), NoGil())
      .def(
          "load",
          [](DelayedLink& link, const Entries& entries, const Given& moments) {
            link.load(state_of(entries), moments_of(moments));
          },
          py::arg("entries"), py::arg("moments"), NoGil())
      .def("average", &DelayedLink::average, py::arg("values"), NoGil())
      .def("check_replicas", &DelayedLink::check_replicas, py::arg("others"), NoGil())
      .def("check_messages", &DelayedLink::check_messages, NoGil())
      .def("steps", &DelayedLink::steps, NoGil())
      .def("delay", &DelayedLink::delay, NoGil())
      .def("in_flight", &DelayedLink::in_flight, NoGil())
      .def("report", &report_of)
      .def("step_report", [](const DelayedLink& link) { return dict_of(link.last_step()); });
}

}  // namespace thinwire::ddp
