// trainer_data.cc: the batches of `thinwire train`, for a Python training that must see the same
// ones.
// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/utils/pybind.h>

#include "apps/train/data.h"

PYBIND11_MODULE(trainer_data, module) {
  using thinwire::train::Data;
  py::class_<Data>(module, "Data")
      .def("train_batch", [](const Data& data, std::uint64_t seed, std::uint64_t step, int rank,
                             int world, std::int64_t batch) {
        const thinwire::train::Batch found = data.train_batch(seed, step, rank, world, batch);
        return std::pair(found.input, found.target);
      });
  module.def("open_data", &thinwire::train::open_data);
}
