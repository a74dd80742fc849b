// error.h: the one exception. Its text says what, where (rank, bucket or parameter), expected, got,
// and what to do.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>

#include "thinwire/core/text.h"

namespace thinwire {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws an Error whose text is the arguments written one after the other.
template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(text_of(parts...));
}

}  // namespace thinwire
