// process_failure.cc: one rank misbehaves, and the others must end with an error that names it.
//     process_failure SCENARIO CULPRIT        under launch.py, which checks their output
// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/comm/engine.h"
#include "tests/comm/group_laws.h"

namespace {

using namespace thinwire;
using Scenario = void (*)(Group&);

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

// The stopped rank is silent, but the kernel keeps its connections open.
void stop_before_reduce(Group& group) {
  if (culprit(group)) std::raise(SIGSTOP);
  reduce(group, 400'000);
}

// So long that c10d uses a ring, where only its neighbour waits for the silent rank.
void stop_before_long_reduce(Group& group) {
  if (culprit(group)) std::raise(SIGSTOP);
  reduce(group, 8'000'000);
}

void stop_before_gather(Group& group) {
  if (culprit(group)) std::raise(SIGSTOP);
  gather(group, 1000, 1000);
}

// Alive but late. It is named as silent too, because nobody can tell the difference. The others
// give up after 2 s and a roll call.
void late(Group& group) {
  if (culprit(group)) std::this_thread::sleep_for(std::chrono::seconds(6));
  group.barrier().wait();
}

void killed(Group& group) {
  if (culprit(group)) std::raise(SIGKILL);
  reduce(group, 400);
}

// A write to a lost rank raises this signal if it comes before the news.
void broken_pipe(Group& group) {
  std::raise(culprit(group) ? SIGKILL : SIGPIPE);
  reduce(group, 400);
}

// Long enough that the others are in the middle of it, while this rank may not have reached it.
void killed_inside(Group& group) {
  laws::Buffer data(100'000'000);
  Pending sum = group.all_reduce(data, DType::f32, ReduceOp::sum, {});
  if (culprit(group)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::raise(SIGKILL);
  }
  sum.wait();
}

void throws(Group& group) {
  if (culprit(group)) throw std::runtime_error("out of luck");
  reduce(group, 400);
}

void other_bytes(Group& group) { reduce(group, culprit(group) ? 800 : 400); }
void other_many_bytes(Group& group) { reduce(group, culprit(group) ? 400'000 : 800'000); }

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

// A program that catches the first error gets it again from every later call.
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

const std::map<std::string, Scenario> scenarios = {
    {"stop_before_reduce", stop_before_reduce},
    {"stop_before_long_reduce", stop_before_long_reduce},
    {"stop_before_gather", stop_before_gather},
    {"late", late},
    {"killed", killed},
    {"broken_pipe", broken_pipe},
    {"killed_inside", killed_inside},
    {"throws", throws},
    {"other_bytes", other_bytes},
    {"other_many_bytes", other_many_bytes},
    {"other_root", other_root},
    {"other_kind", other_kind},
    {"other_slot", other_slot},
    {"too_long", too_long},
    {"goes_on", goes_on},
};

int body(int argc, char** argv, Group& patient) {
  if (argc != 3) fail("expected a scenario and a rank, got ", argc - 1, " arguments");
  const Scenario scenario = scenarios.at(argv[1]);
  culprit_rank = std::stoi(argv[2]);
  // Starting may take long on a busy machine. Once all ranks are here, two seconds are a long time.
  patient.barrier().wait();
  const auto group = testing::make_group({.timeout = std::chrono::seconds(2)});
  reduce(*group, 40);
  group->barrier().wait();
  scenario(*group);
  group->barrier().wait();
  std::printf("rank %d ended well\n", group->rank());
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  return testing::run_ranks(argc, argv, std::bind_front(body, argc, argv));
}
