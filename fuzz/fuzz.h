// fuzz.h: shared by all fuzz targets: a check that stops, and input as a stream of numbers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "thinwire/core/view.h"

namespace thinwire::fuzz {

// Stops the fuzzer with the law that was broken.
inline void require(bool holds, const char* law) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", law);
  std::abort();
}

// Reads numbers from the front of the input; zeros when it is exhausted.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(std::as_bytes(std::span(data, size))) {}

  template <typename T>
  T take() {
    T value{};
    const std::size_t size = sizeof value < rest_.size() ? sizeof value : rest_.size();
    if (size > 0) std::memcpy(&value, rest_.data(), size);
    rest_ = rest_.subspan(size);
    return value;
  }
  bool empty() const { return rest_.empty(); }
  ConstBytes rest() const { return rest_; }

 private:
  ConstBytes rest_;
};

// Tries the input unchanged, and with the checksum that `repair` computes, so that code after the
// checksum is reached too.
template <typename Check, typename Repair>
void check_repaired(const std::uint8_t* data, std::size_t size, Check check, Repair repair) {
  const ConstBytes bytes = std::as_bytes(std::span(data, size));
  check(bytes);
  std::vector<std::byte> repaired(bytes.begin(), bytes.end());
  repair(Bytes(repaired));
  check(ConstBytes(repaired));
}

}  // namespace thinwire::fuzz
