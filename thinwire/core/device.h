// device.h: where memory lies and in which order work on it runs.
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

// An order of work on a device: a cudaStream_t as an opaque handle, or nothing on the CPU, where a
// call is done when it returns. Everything that takes a Stream may only enqueue: its result is
// there when the stream reaches that point.
struct Stream {
  void* handle = nullptr;
};

}  // namespace thinwire
