// failure.cc: the rank of the second argument misbehaves in the way that the first one names; the
// others must end with an error that names it. Run by launch.py, which reads their words.
// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tests/comm/c10d/join.h"
#include "tests/comm/group_laws.h"

namespace {

using namespace thinwire;
using Scenario = void (*)(Group&);

const GroupOptions limits{.timeout = std::chrono::seconds(2)};
int culprit_rank = -1;  // set in main

bool culprit(const Group& group) { return group.rank() == culprit_rank; }

void gather(Group& group, std::size_t slot, std::size_t bytes) {
  const laws::Buffer mine(bytes);
  laws::Buffer slots(slot * laws::size_of_group(group));
  std::vector<std::size_t> sizes(laws::size_of_group(group));
  group.all_gather(mine, slot, slots, sizes, {}).wait();
}

void reduce(Group& group, std::size_t bytes) {
  laws::Buffer data(bytes);
  group.all_reduce(data, DType::f32, ReduceOp::sum, {}).wait();
}

// The stopped rank is silent; the kernel keeps its connections open.
void stop_before_reduce(Group& group) {
  if (culprit(group)) std::raise(SIGSTOP);
  reduce(group, 400'000);
}

void stop_before_gather(Group& group) {
  if (culprit(group)) std::raise(SIGSTOP);
  gather(group, 1000, 1000);
}

// Alive and late: named as silent too, for nobody can tell.
void late(Group& group) {
  if (culprit(group)) std::this_thread::sleep_for(std::chrono::seconds(20));
  group.barrier().wait();
}

void killed(Group& group) {
  if (culprit(group)) std::raise(SIGKILL);
  reduce(group, 400);
}

void throws(Group& group) {
  if (culprit(group)) throw std::runtime_error("out of luck");
  reduce(group, 400);
}

void other_bytes(Group& group) { reduce(group, culprit(group) ? 800 : 400); }

void other_root(Group& group) {
  laws::Buffer data(100);
  group.broadcast(data, culprit(group) ? 1 : 0, {}).wait();
}

void other_kind(Group& group) {
  if (culprit(group)) return gather(group, 100, 100);
  reduce(group, 400);
}

void other_slot(Group& group) {
  const std::size_t slot = culprit(group) ? 200 : 100;
  gather(group, slot, slot);
}

void too_long(Group& group) { gather(group, 100, culprit(group) ? 101 : 100); }

// Whoever catches the first error meets it again in every later call.
void goes_on(Group& group) {
  if (culprit(group)) std::raise(SIGSTOP);
  try {
    group.barrier().wait();
  } catch (const Error& error) {
    const auto start = std::chrono::steady_clock::now();
    try {
      group.barrier().wait();
    } catch (const Error& again) {
      const bool at_once = std::chrono::steady_clock::now() - start < std::chrono::seconds(1);
      if (at_once && std::string(again.what()) == error.what()) fail("again: ", error.what());
    }
  }
}

// Over a backend that the program made itself: there is no store for a roll call.
void foreign(Group&) {
  const Rendezvous at = testing::job();
  c10d::TCPStoreOptions store_options;
  store_options.port = static_cast<std::uint16_t>(at.port + 1);
  store_options.isServer = at.rank == 0;
  const auto store = c10::make_intrusive<c10d::TCPStore>(at.host, store_options);
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(at.host));
  const auto group = make_c10d_group(
      c10::make_intrusive<c10d::ProcessGroupGloo>(store, at.rank, at.world, options), limits);
  if (culprit(*group)) std::raise(SIGSTOP);
  group->barrier().wait();
}

const std::map<std::string, Scenario> scenarios = {
    {"stop_before_reduce", stop_before_reduce},
    {"stop_before_gather", stop_before_gather},
    {"late", late},
    {"killed", killed},
    {"throws", throws},
    {"other_bytes", other_bytes},
    {"other_root", other_root},
    {"other_kind", other_kind},
    {"other_slot", other_slot},
    {"too_long", too_long},
    {"goes_on", goes_on},
    {"foreign", foreign},
};

void run(const std::string& name) {
  if (name == "absent" && testing::job().rank == culprit_rank) fail("this rank stays away");
  const auto group = make_gloo_group(testing::job(), limits);
  reduce(*group, 40);
  group->barrier().wait();
  scenarios.at(name)(*group);
  group->barrier().wait();
  std::printf("rank %d ended well\n", group->rank());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return EXIT_FAILURE;
  culprit_rank = std::stoi(argv[2]);
  try {
    run(argv[1]);
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}
