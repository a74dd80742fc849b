// order.h: the two orders of a parameter's elements. A state has them by index, the last dimension
// fastest, whatever the parameter's memory format; a bucket of DDP has them as they lie in memory,
// which is another order for channels_last.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <c10/core/TensorImpl.h>

#include "thinwire/core/state.h"

namespace thinwire::ddp {

class Orders {
 public:
  // Of a parameter as it lies in a bucket.
  void note(const std::string& name, const c10::TensorImpl& parameter);

  // Changes the order of every u, v and m of a parameter whose two orders differ.
  void by_index(State& state) const;
  void by_memory(State& state) const;

 private:
  struct Shape {
    std::vector<std::int64_t> sizes, strides;
    std::size_t count = 0;
  };
  template <typename Change>
  void visit(State& state, const Change& change) const;

  std::map<std::string, Shape> shapes_;  // of parameters whose two orders differ
};

}  // namespace thinwire::ddp
