// run.cc: runs test programs on the engines of c10d: a group, and the body in it.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "tests/comm/engine.h"

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

// The body's exceptions are caught inside the group's scope: unwinding the group would notify peers
// that may be gone.
int run_ranks(int, char**, const std::function<int(Group&)>& body, const GroupOptions& options) {
  return guarded([&] {
    const auto group = make_group(options);
    return guarded([&] { return body(*group); });
  });
}

}  // namespace thinwire::testing
