// virtual_test.cc: what virtual workers train has the bits of as many workers with an Exchange
// each: results, checkpoints of every rank, and each continues the other's. Ranks of the other kind
// are threads; virtual.py has processes.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/train/settings.h"
#include "apps/train/stop.h"
#include "apps/train/trainer.h"
#include "thinwire/comm/local.h"

namespace thinwire::train {
namespace {

using nlohmann::json;

constexpr const char* virtual_runs[] = {
    "--scheme dense --accumulate 2 --fuse-mb 1 --clip 0.1",
    "--scheme bf16 --precision bf16 --check-every 2",
    "--scheme int8 --optimizer adamw --weight-decay 0.01 --partition dirichlet:0.3",
    "--scheme terngrad --partition contiguous",
    "--scheme qsgd:form=coded --exchange split",
    "--scheme powersgd --fuse-mb 0.01 --nesterov",
    "--scheme signum --lr 0.001 --exchange server:1",
    "--scheme onebit --exchange split --clip 0.5",
    "--scheme dgc:density=0.05,warmup=2 --exchange server:2,second=topk:density=0.2 --clip 0.2",
    "--scheme csc --weight-decay 0.01",
    "--scheme dgc --model resnet20 --batch 2 --exchange server:1",
};
constexpr int virtual_count = 3;

std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class VirtualRun : public ::testing::Test {
 protected:
  VirtualRun() { std::filesystem::create_directories(folder_); }
  ~VirtualRun() override { std::filesystem::remove_all(folder_); }

  // Trains, and returns what --json says.
  json train(bool virtually, const std::string& given) {
    const auto unless = [&](const char* flag, const char* value) {
      return given.find(flag) == std::string::npos ? std::string(flag) + " " + value + " " : "";
    };
    Settings settings;
    CLI::App verb;
    describe(verb, settings);
    verb.parse(unless("--data", "synthetic:1x8x8:10") + unless("--batch", "8") +
               "--bucket-mb 0.02 --steps 6 --schedule linear --nan-at 1,2 --threads 1 " + given);
    settings.json = path("out.json");
    if (virtually) settings.virtual_workers = virtual_count;
    check(settings);
    const auto run = [&](Group& group) {
      Place place;
      place.rank = group.rank();
      Trainer(settings, group, place, {1, -1}).run();
    };
    ::testing::internal::CaptureStdout();
    run_local(virtually ? 1 : virtual_count + settings.meeting.servers, run);
    ::testing::internal::GetCapturedStdout();
    return json::parse(bytes_of_file(settings.json));
  }

  static void expect_same(const json& virtually, const json& expected) {
    for (const char* key : {"loss", "test_loss", "bytes_per_step", "ratio", "skipped", "checksum"})
      EXPECT_EQ(virtually["final"][key], expected["final"][key]) << key;
    ASSERT_EQ(virtually["rows"].size(), expected["rows"].size());
    for (std::size_t i = 0; i < expected["rows"].size(); ++i)
      EXPECT_EQ(virtually["rows"][i]["loss"], expected["rows"][i]["loss"]) << "row " << i;
    EXPECT_EQ(virtually["settings"], expected["settings"]);
  }

  std::string path(const std::string& name) const { return folder_ / name; }

 private:
  const std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) / ("virtual" + std::to_string(getpid()));
};

class Virtual : public VirtualRun, public ::testing::WithParamInterface<const char*> {};

TEST_P(Virtual, HasTheBitsOfWorkers) {
  const std::string flags = GetParam(), first = flags + " --stop 3 --eval-every 2 --save ",
                    second = flags + " --resume ";
  expect_same(train(true, first + path("virtual")), train(false, first + path("workers")));
  int ranks = 0;
  for (; std::filesystem::exists(path("workers.rank" + std::to_string(ranks))); ++ranks) {
    const std::string rank = ".rank" + std::to_string(ranks);
    EXPECT_TRUE(bytes_of_file(path("virtual" + rank)) == bytes_of_file(path("workers" + rank)))
        << "the checkpoints of rank " << ranks << " differ";
  }
  EXPECT_GE(ranks, virtual_count);
  EXPECT_FALSE(std::filesystem::exists(path("virtual.rank" + std::to_string(ranks))));
  expect_same(train(true, second + path("workers")), train(false, second + path("virtual")));
}

TEST_F(VirtualRun, DropsOutWhatWorkersDropOut) {
  std::ofstream text(path("text"));
  for (int i = 0; i < 1000; ++i) text << i * i;
  text.close();
  const std::string flags = "--scheme topk --model lstm650 --sequence 4 --batch 2 --data chars:";
  expect_same(train(true, flags + path("text")), train(false, flags + path("text")));
}

// In a process of its own: a signal is never forgotten.
TEST(VirtualStop, ThreadsEndAtTheLastStepThatOneHasBegun) {
  Settings settings;
  settings.save = "somewhere";
  settings.virtual_workers = 2;
  settings.delayed.emplace();
  const auto interrupted = [&] {
    Place places[2];
    places[0].world = places[1].world = 2;
    places[1].rank = 1;
    Stop ahead(settings, places[0]), behind(settings, places[1]);
    bool good = ahead.allows(0) && ahead.allows(1) && ahead.allows(2) && behind.allows(0);
    std::raise(SIGTERM);
    good = good && behind.allows(1) && behind.allows(2) && !behind.allows(3) && !ahead.allows(3);
    std::_Exit(good ? 0 : 1);
  };
  EXPECT_EXIT(interrupted(), ::testing::ExitedWithCode(0), "");
}

INSTANTIATE_TEST_SUITE_P(Runs, Virtual, ::testing::ValuesIn(virtual_runs));

}  // namespace
}  // namespace thinwire::train
