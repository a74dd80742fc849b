// laws.cc: the laws of groups over Gloo, as it is and over a slow link.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "tests/comm/c10d/join.h"
#include "tests/comm/group_laws.h"
#include "thinwire/comm/link.h"

namespace {

using namespace thinwire;

// Longer than a ring's segments, not a multiple of them.
void long_all_reduce(Group& group) {
  laws::all_reduce_is_exact_on_whole_numbers(group, DType::f32, ReduceOp::sum, 1'234'567);
  laws::all_reduce_is_identical_when_it_rounds(group, DType::f16, 765'431);
}

void body() {
  const auto group = make_gloo_group(testing::job());
  laws::gather_laws(*group);
  laws::broadcast_laws(*group);
  laws::order_laws(*group);
  laws::all_reduce_laws(*group);
  long_all_reduce(*group);
  // A second group that meets at the same address while the first one lives.
  const auto slow = emulate_link(make_gloo_group(testing::job()), Link::parse("1gbit,100us"));
  laws::order_laws(*slow);
  laws::require(*group, slow->name() == "c10d over an emulated 1gbit,100us", slow->name());
  group->barrier().wait();
}

}  // namespace

int main() {
  try {
    body();
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}
