// within.h: calls that may never return, with a time limit: a thread of its own waits there, for
// ever if need be. The store of a stopped process answers never, and a communicator waits for ranks
// that are gone. Internal to the engine.
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

// The result of `body`, or nothing when it fails or takes longer.
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
