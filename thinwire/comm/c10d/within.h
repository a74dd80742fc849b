// within.h: gives a time limit to calls that may never return. A thread of its own makes the call
// and waits, forever if need be. The store of a stopped process never answers, and a communicator
// waits for ranks that are gone. Internal to the engine.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

namespace thinwire::torch_engine {

// Returns the result of `body`, or nothing when it fails or takes too long.
template <typename Body>
auto within(std::chrono::milliseconds limit, Body body) -> std::optional<decltype(body())> {
  using Result = std::optional<decltype(body())>;
  const auto promise = std::make_shared<std::promise<Result>>();
  auto result = promise->get_future();
  std::thread([promise, body = std::move(body)] {
    try {
      promise->set_value(body());
    } catch (const std::exception&) {
      promise->set_value(std::nullopt);
    }
  }).detach();
  return result.wait_for(limit) == std::future_status::ready ? result.get() : std::nullopt;
}

}  // namespace thinwire::torch_engine
