// module_virtual.cc: virtual workers for Python. Called once per optimizer step; all work is
// without the GIL.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/bindings.h"
#include "thinwire/torch/virtual_workers.h"

namespace thinwire::ddp {

void bind_virtual(py::module_& module) {
  py::class_<VirtualWorkers>(module, "VirtualWorkers")
      .def(py::init([](int count, const std::vector<std::pair<std::string, at::Tensor>>& names,
                       const std::string& scheme, const std::string& exchange,
                       std::size_t fuse_bytes, bool void_as_nan) {
             AttachmentOptions options = options_of(scheme, exchange, fuse_bytes);
             options.void_as_nan = void_as_nan;
             return std::make_unique<VirtualWorkers>(count, names, options);
           }),
           py::kw_only(), py::arg("count"), py::arg("names"), py::arg("scheme"),
           py::arg("exchange"), py::arg("fuse_bytes"), py::arg("void_as_nan"))
      .def("attachments", &VirtualWorkers::attachments)
      .def("exchange", &VirtualWorkers::exchange, py::arg("cut"), py::arg("gradients"),
           py::arg("used"), NoGil())
      .def(
          "seconds_over",
          [](const VirtualWorkers& workers, const std::string& link) {
            return workers.seconds_over(Link::parse(link));
          },
          py::arg("link"));
}

}  // namespace thinwire::ddp
