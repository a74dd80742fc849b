// order.h: the two orders of a parameter's elements. A state stores them by index, the last
// dimension fastest, whatever the parameter's memory format. A DDP bucket has them in memory order,
// which differs for channels_last.
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
  // The order of a parameter in a bucket.
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
