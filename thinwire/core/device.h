// device.h: the device that holds memory, and the order in which work on it runs.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace thinwire {

struct Device {
  enum class Kind : std::uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  int index = 0;

  bool operator==(const Device&) const = default;
};

// A queue of work on a device: a cudaStream_t as an opaque handle. On the CPU it is null, and a
// call is complete when it returns. A function that takes a Stream may only enqueue its work: the
// result is valid once the stream reaches that point.
struct Stream {
  void* handle = nullptr;
};

}  // namespace thinwire
