// error.h: the only exception type. Its text says what failed, where (rank, bucket or parameter),
// what was expected, what was found, and what to do.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

#include "thinwire/core/text.h"

namespace thinwire {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws an Error whose text is the concatenation of the arguments.
template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(text_of(parts...));
}

}  // namespace thinwire
