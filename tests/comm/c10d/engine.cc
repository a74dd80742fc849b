// engine.cc: test programs on the c10d engine, over Gloo.
// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/engine.h"

#include <cstdio>
#include <exception>

#include "tests/comm/c10d/join.h"

namespace thinwire::testing {
namespace {

int guarded(const std::function<int()>& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}

}  // namespace

std::unique_ptr<Group> make_group(const GroupOptions& options) {
  return make_gloo_group(job(), options);
}

// The body's exceptions end inside the group's scope: unwinding it would tell peers that may be gone.
int run_ranks(int, char**, const std::function<int(Group&)>& body, const GroupOptions& options) {
  return guarded([&] {
    const auto group = make_group(options);
    return guarded([&] { return body(*group); });
  });
}

}  // namespace thinwire::testing
