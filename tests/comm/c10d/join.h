// join.h: joins the job in which launch.py started this process.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <string>

#include "thinwire/comm/c10d/c10d.h"
#include "thinwire/core/error.h"

namespace thinwire::testing {

inline std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value) fail("expected ", name, " in the environment: run this under tests/launch.py");
  return value;
}

inline Rendezvous job() {
  const char* const listener = std::getenv("LISTENER");
  return {.host = variable("MASTER_ADDR"),
          .port = static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT"))),
          .rank = std::stoi(variable("RANK")),
          .world = std::stoi(variable("WORLD_SIZE")),
          .listener = listener ? std::stoi(listener) : -1};
}

}  // namespace thinwire::testing
