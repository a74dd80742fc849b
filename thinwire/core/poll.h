// poll.h: waiting for work on a device, with a time limit that CUDA's own calls do not have.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <thread>

namespace thinwire {

// Waits until done() is true. Returns false after `limit`. It does not sleep at first: whoever
// waits at the end of a step waits for less than that.
template <typename Done>
bool poll(const Done& done, std::chrono::milliseconds limit) {
  constexpr std::chrono::milliseconds busy(5);
  const auto start = std::chrono::steady_clock::now();
  while (!done()) {
    const auto passed = std::chrono::steady_clock::now() - start;
    if (passed > limit) return false;
    if (passed < busy) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  return true;
}

}  // namespace thinwire
