// module_delayed.cc: delayed averaging for Python. The optimizer's hook calls finish_step() in
// every step; all work and all waiting in it is without the GIL.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/bindings.h"

#include <optional>

#include "thinwire/delay/fit.h"
#include "thinwire/delay/stream_delayed.h"
#include "thinwire/torch/delayed_attachment.h"

namespace thinwire::ddp {
namespace {

// None if the optimizer has no moment of a parameter yet.
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

std::shared_ptr<DelayedAttachment> make_delayed(
    c10::intrusive_ptr<c10d::Backend> backend, c10::intrusive_ptr<c10d::Store> store, int host,
    double timeout, c10::Device device, c10::intrusive_ptr<c10d::Backend> data, bool streams,
    const std::string& link, const Cut& cut, const Given& moments, const std::string& scheme,
    const std::string& delay, std::uint64_t local_steps, const std::string& correction,
    double momentum, std::uint64_t check_every) {
  const py::gil_scoped_release no_gil;
  const DelayOptions options = options_of(delay, local_steps, correction, momentum, check_every);
  const Connections connections = connections_of(std::move(backend), std::move(store), host,
                                                 timeout, device, std::move(data), streams, link);
  return {new DelayedAttachment(connections, cut, moments_of(moments), config_of(scheme), options),
          release<DelayedAttachment>};
}

py::dict report_of(DelayedAttachment& attachment) {
  Report report;
  std::uint64_t messages = 0;
  {
    const py::gil_scoped_release no_gil;
    report = attachment.report();
    messages = attachment.messages();
  }
  py::dict dict = dict_of(report);
  dict["messages"] = messages;
  dict["in_flight"] = attachment.in_flight();
  dict["delay"] = attachment.delay();
  return dict;
}

}  // namespace

void bind_delayed(py::module_& module) {
  // Refuses settings that clash, before anything is attached. Problems that depend on the model's
  // shapes are found later.
  module.def(
      "check_late",
      [](const std::string& scheme, const std::string& delay, std::uint64_t local_steps,
         const std::string& correction, bool moments, bool streams) {
        const DelayOptions options = options_of(delay, local_steps, correction, 0, 0);
        check_fit(options, config_of(scheme), moments);
        if (streams) check_in_streams(options);
      },
      py::arg("scheme"), py::arg("delay"), py::arg("local_steps"), py::arg("correction"),
      py::arg("moments"), py::arg("streams"));
  py::class_<DelayedAttachment, std::shared_ptr<DelayedAttachment>>(module, "DelayedAttachment")
      .def(py::init(&make_delayed), py::kw_only(), py::arg("backend").none(true),
           py::arg("store").none(true), py::arg("host"), py::arg("timeout"), py::arg("device"),
           py::arg("data").none(true), py::arg("streams"), py::arg("link") = "", py::arg("cut"),
           py::arg("moments"), py::arg("scheme"), py::arg("delay"), py::arg("local_steps"),
           py::arg("correction"), py::arg("momentum"), py::arg("check_every"))
      .def(
          "begin_step",
          [](DelayedAttachment& attachment, bool looks) -> std::optional<at::Tensor> {
            const at::Tensor found = attachment.begin_step(looks);
            return found.defined() ? std::optional(found) : std::nullopt;
          },
          py::arg("looks"), NoGil())
      .def(
          "fill",
          [](DelayedAttachment& attachment, const Given& moments) {
            attachment.fill(moments_of(moments));
          },
          py::arg("moments"), NoGil())
      .def(
          "finish_step",
          [](DelayedAttachment& attachment, const Given& moments,
             const DelayedAttachment::Skipped& skipped) {
            attachment.finish_step(moments_of(moments), skipped);
          },
          py::arg("moments"), py::arg("skipped"), NoGil())
      .def(
          "drain",
          [](DelayedAttachment& attachment, const Given& moments) {
            attachment.drain(moments_of(moments));
          },
          py::arg("moments"), NoGil())
      .def("leave_anchor", &DelayedAttachment::leave_anchor, py::arg("what"), NoGil())
      .def("show_anchor", &DelayedAttachment::show_anchor, NoGil())
      .def("hide_anchor", &DelayedAttachment::hide_anchor, NoGil())
      .def(
          "state",
          [](DelayedAttachment& attachment, const Given& moments) {
            return entries_of(attachment.state(moments_of(moments)));
          },
          py::arg("moments"), NoGil())
      .def(
          "load",
          [](DelayedAttachment& attachment, const Entries& entries, const Given& moments) {
            attachment.load(state_of(entries), moments_of(moments));
          },
          py::arg("entries"), py::arg("moments"), NoGil())
      .def("average", &DelayedAttachment::average, py::arg("values"), NoGil())
      .def("check_replicas", &DelayedAttachment::check_replicas, py::arg("others"), NoGil())
      .def("check_messages", &DelayedAttachment::check_messages, NoGil())
      .def("stream",
           [](const DelayedAttachment& attachment) {
             return reinterpret_cast<std::uintptr_t>(attachment.stream().handle);
           })
      .def("steps", &DelayedAttachment::steps, NoGil())
      .def("delay", &DelayedAttachment::delay, NoGil())
      .def("in_flight", &DelayedAttachment::in_flight, NoGil())
      .def("report", &report_of)
      .def("step_report", [](DelayedAttachment& attachment) {
        Step step;
        {
          const py::gil_scoped_release no_gil;
          step = attachment.last_step();
        }
        return dict_of(step);
      });
}

}  // namespace thinwire::ddp
