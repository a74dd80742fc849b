// status.h: the result of a decoder. Bytes from the network are hostile, so a decoder never throws,
// prints or allocates for a message. It returns a Status; the caller, which knows rank and bucket,
// writes the error message.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace thinwire {

enum class Code : std::uint8_t {
  ok,
  truncated,     // fewer bytes than the content needs
  bad_magic,     // not one of our frames or files
  bad_version,   // written by a format this build does not read
  bad_checksum,  // damaged on the way
  bad_value,     // a field outside its range
  mismatch,      // well formed, but not what was expected here
  skipped,       // no error: a rank had a non-finite gradient, so all ranks skip this step
};

// A code and a fixed sentence that says what was wrong; `what` points to static storage.
struct [[nodiscard]] Status {
  Code code = Code::ok;
  const char* what = "ok";

  constexpr bool ok() const { return code == Code::ok; }
};

}  // namespace thinwire
