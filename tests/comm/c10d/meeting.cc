// meeting.cc: failures that only c10d can have. `absent`: a rank does not come to the meeting.
// `foreign`: a rank goes silent over a backend that the program made itself, without a store for a
// roll call.
//     meeting SCENARIO CULPRIT
// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdio>
#include <functional>
#include <string>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tests/comm/c10d/join.h"
#include "tests/comm/engine.h"

namespace {

using namespace thinwire;

const GroupOptions limits{.timeout = std::chrono::seconds(2)};

// An address other than that of the first meeting, which still exists: below the
// kernel's ephemeral ports.
Rendezvous next_door() {
  Rendezvous at = testing::job();
  at.port = static_cast<std::uint16_t>(20000 + at.port % 12000);
  at.listener = -1;
  return at;
}

void absent(bool culprit) {
  if (culprit) fail("this rank stays away");
  make_gloo_group(next_door(), limits)->barrier().wait();
}

void foreign(bool culprit) {
  const Rendezvous at = next_door();
  c10d::TCPStoreOptions store_options;
  store_options.port = at.port;
  store_options.isServer = at.rank == 0;
  const auto store = c10::make_intrusive<c10d::TCPStore>(at.host, store_options);
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(at.host));
  const auto group = make_c10d_group(
      c10::make_intrusive<c10d::ProcessGroupGloo>(store, at.rank, at.world, options), limits);
  if (culprit) std::raise(SIGSTOP);
  group->barrier().wait();
}

int body(int argc, char** argv, Group& group) {
  if (argc != 3) fail("expected a scenario and a rank, got ", argc - 1, " arguments");
  // All ranks are here, so two seconds are a long time from now on.
  group.barrier().wait();
  const bool culprit = group.rank() == std::stoi(argv[2]);
  argv[1] == std::string("absent") ? absent(culprit) : foreign(culprit);
  std::printf("rank %d ended well\n", group.rank());
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  return testing::run_ranks(argc, argv, std::bind_front(body, argc, argv));
}
