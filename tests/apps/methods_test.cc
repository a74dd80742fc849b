// methods_test.cc: `thinwire compare --methods`: the flags of each method, the baseline, rejected
// input, and timelines on the page and as separate files.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/apps/comparing.h"

namespace {

using nlohmann::json;
using thinwire::testing::contains;
using thinwire::testing::count;
using thinwire::testing::fault;
using thinwire::testing::fixture;
using thinwire::testing::Outcome;
using thinwire::testing::read;
using thinwire::testing::write;

class Methods : public thinwire::testing::Compare {};

// The arguments of the stand-in, one run per line, up to the file for its result.
std::vector<std::string> lines_of(const std::string& calls) {
  std::vector<std::string> lines;
  std::istringstream in(calls);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line.substr(0, line.find(" --trace ")));
  }
  return lines;
}

TEST_F(Methods, BecomeFlags) {
  const json result = rows(
      "compare --methods sync,fedavg,fedavg:local=2,dga:delay=20,"
      "dga:local=5,delay=auto:30,correction=pull,rate=0.1,dga:share=0.5,delay=8,"
      "delayed:delay=4,local=2,sync:scheme=topk,density=0.02,dga:delay=3,clip=1,scheme=dgc "
      "--steps 9 --scheme fp16 --lr=1 " +
      stand_in());
  const std::vector<std::string> expected = {
      "--delay 0 --scheme fp16",
      "--local-steps 5 --scheme fp16",
      "--local-steps 2 --scheme fp16",
      "--delay 20 --scheme fp16",
      "--delay auto:30 --local-steps 5 --correction pull:rate=0.1 --scheme fp16",
      "--delay 8 --correction soft:share=0.5 --scheme fp16",
      "--delay 4 --local-steps 2 --correction none --scheme fp16",
      "--delay 0 --scheme topk:density=0.02",
      "--delay 3 --correction ledger:clip=1 --scheme dgc"};
  const std::vector<std::string> calls = lines_of(read(path("calls")));
  ASSERT_EQ(calls.size(), expected.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i], "--steps 9 --lr=1 " + expected[i]);
  }
  EXPECT_EQ(result[4]["run"], "dga:local=5,delay=auto:30,correction=pull,rate=0.1");
  EXPECT_EQ(result[7]["scheme"], "topk:density=0.02");
  const json kept = json::parse(read(path("rows.json")));
  EXPECT_TRUE(contains(kept["command"], "--methods sync,fedavg,")) << kept["command"];
  const std::string page = page_of(kept);
  EXPECT_TRUE(contains(page, "methods compared"));
  EXPECT_TRUE(contains(page, "against fedavg."));
}

// The stand-in needs 0.25 s per step without delay, and 0.05 s with it.
TEST_F(Methods, SpeedUpIsOverFedAvgOfFiveSteps) {
  const std::string faster =
      "case \"$*\" in *'delay 20'*) s=0.05;; *) s=0.25;; esac\nsed -i "
      "\"s/\\\"seconds_per_step\\\":[0-9.]*/\\\"seconds_per_step\\\":$s/\" '" +
      path("result.json") + "'";
  const std::string trainer = stand_in(faster);
  json result = rows("compare --methods dga:delay=20,fedavg:local=5,sync " + trainer);
  EXPECT_NEAR(result[0]["speed_up"].get<double>(), 5, 1e-9);
  EXPECT_EQ(result[1]["speed_up"], 1);
  EXPECT_FALSE(result[0].contains("speed"));
  EXPECT_TRUE(contains(read(path("page.html")),
                       "dga:delay=20 reaches 75.0 % accuracy first, in "
                       "100 ms, 5.00 times sooner than fedavg"));
  EXPECT_TRUE(contains(run("compare --methods sync " + trainer).out, "speed-up"));
  result = rows("compare --methods dga:delay=20,fedavg:local=4 " + trainer);
  EXPECT_EQ(result[0]["speed_up"], 1);
  EXPECT_NEAR(result[1]["speed_up"].get<double>(), 0.2, 1e-9);
}

TEST_F(Methods, NothingOverlapsBetweenVirtualWorkers) {
  rows("compare --methods sync --virtual 2 " + stand_in());
  EXPECT_EQ(read(path("calls")).find("--virtual 2 --delay 0 --scheme dense --json "), 0u);
}

TEST_F(Methods, RefusesBadMethods) {
  const std::string trainer = stand_in();
  expect_refused("compare --methods wings " + trainer,
                 {"--methods", "wings", "sync, fedavg, dga, delayed"});
  expect_refused("compare --methods sync:local=5 " + trainer, {"sync", "'local'", "scheme"});
  expect_refused("compare --methods fedavg:delay=5 " + trainer, {"fedavg", "'delay'", "local"});
  expect_refused("compare --methods dga " + trainer, {"dga", "delay=D"});
  expect_refused("compare --methods delayed:local=5 " + trainer, {"delayed", "delay=D"});
  expect_refused("compare --methods delayed:delay=5,correction=pull " + trainer,
                 {"'correction'", "delay, local"});
  expect_refused("compare --methods dga:delay=soon " + trainer, {"delay", "soon"});
  expect_refused("compare --methods fedavg:local=0 " + trainer, {"local", "'0'"});
  expect_refused("compare --methods dga:delay=5,correction=wings " + trainer, {"wings", "pull"});
  expect_refused("compare --methods dga:delay=5,correction=pull,share=0.5 " + trainer, {"share"});
  expect_refused("compare --methods sync:density=0.1 " + trainer, {"'density'", "scheme=NAME"});
  expect_refused("compare --methods sync:scheme=topk,wings=1 " + trainer, {"topk", "wings"});
  expect_refused("compare --methods sync --scheme wings " + trainer, {"wings", "dgc"});
  expect_refused("compare --methods sync --delay 5 " + trainer, {"--delay", "--methods"});
  expect_refused("compare --methods sync --trace=x " + trainer, {"--trace", "single run"});
  expect_refused("compare --methods , " + trainer, {"--methods"});
  expect_refused("compare --methods sync --schemes dense " + trainer, {"--schemes"});
  expect_refused("compare --methods sync --preset dgc-ablation " + trainer, {"--preset"});
  expect_refused(std::string("compare --methods sync --from ") + fixture, {"--from"});
  EXPECT_FALSE(std::filesystem::exists(path("calls")));
}

// 20 steps of 10 ms (forward 4, backward 4, update 1, take in 1), and messages in flight for
// `travel` steps each, in two buckets, the second of which is sent a millisecond later.
json trace_of(int travel) {
  json events = {{{"ph", "M"}, {"pid", 0}, {"tid", 0}, {"name", "process_name"}}};
  const auto add = [&](const char* name, int tid, int step, double from, double length) {
    events.push_back({{"ph", "X"},
                      {"pid", 0},
                      {"tid", tid},
                      {"name", name},
                      {"ts", from * 1000},
                      {"dur", length * 1000},
                      {"args", {{"step", step}}}});
  };
  for (int step = 0; step < 20; ++step) {
    const double start = 10 * step;
    add("forward", 1, step, start, 4);
    add("backward", 1, step, start + 4, 4);
    add("update", 1, step, start + 8, 1);
    add("take in", 1, step, start + 9, 1);
    add("encode", 2, step, start + 9, 1);
    add("exchange", 10, step, start + 9, 10 * travel - 2);
    add("exchange", 11, step, start + 10, 10 * travel - 2);
  }
  return {{"traceEvents", events}};
}

// The first message ends at 9 + 1 + 48 = 58 ms, so the picture shows steps 6 to 19. Message 1 is
// the first that is still in flight at that time, and up to 5 are in flight at once.
TEST_F(Methods, TimelineOfATrace) {
  write(path("trace.json"), trace_of(5).dump());
  const std::string flags = "compare --timeline '" + path("trace.json") + "' ";
  const Outcome outcome = run(flags + "--report '" + path("t.svg") + "'");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string svg = read(path("t.svg"));
  EXPECT_EQ(fault(svg), "");
  EXPECT_TRUE(contains(svg, "14 steps in 140 ms, up to 5 messages in flight")) << svg;
  EXPECT_TRUE(contains(svg, "<title>forward of step 6: 4 ms</title>")) << svg;
  EXPECT_FALSE(contains(svg, "of step 5:"));
  EXPECT_TRUE(contains(svg, "<title>message 1: 49")) << svg;
  EXPECT_FALSE(contains(svg, "<title>message 0:"));
  EXPECT_EQ(count(svg, "<title>take in of step"), 14u);
  EXPECT_TRUE(contains(svg, "50 ms</text>"));
  expect_refused(flags, {"--report"});
  expect_refused(flags + "--schemes dense --report x.svg", {"--timeline"});
  expect_refused(flags + "--lr 1 --report x.svg", {"--timeline", "--lr"});
  for (const char* bad :
       {"", "[1, 2", "[]", R"({"traceEvents": 7})", R"({"traceEvents": [7, {}]})",
        R"({"traceEvents": [{"ph": "X", "name": "forward", "ts": 1, "dur": 1}]})"}) {
    write(path("bad.json"), bad);
    expect_refused("compare --timeline '" + path("bad.json") + "' --report '" + path("t") + "'",
                   {"--timeline", "bad.json", "--trace"});
  }
}

// The first seed of every method is traced, and drawn on a common time axis.
TEST_F(Methods, HaveTimelines) {
  write(path("fast.json"), trace_of(5).dump());
  json slow = trace_of(1);
  for (json& event : slow["traceEvents"]) {
    if (!event.contains("ts")) continue;
    event["ts"] = 4 * event["ts"].get<double>();
    event["dur"] = 4 * event["dur"].get<double>();
  }
  write(path("slow.json"), slow.dump());
  const std::string trainer = stand_in(
      "case \"$*\" in *'delay 20'*) t=fast;; *) t=slow;; esac\n"
      "case \"$*\" in *--trace*) cp \"" +
      path("") + "$t.json\" \"$(echo \"$*\" | sed 's/.*--trace //; s/ .*//')\";; esac");
  rows("compare --methods sync,dga:delay=20 --seeds 2 " + trainer);
  const std::vector<std::string> calls = lines_of(read(path("calls")));
  ASSERT_EQ(calls.size(), 4u);
  EXPECT_EQ(count(read(path("calls")), "--trace"), 2u);
  EXPECT_TRUE(contains(calls[0], "--seed 1") && contains(calls[1], "--seed 2"));
  // 30 steps of the fast method, although its trace ends after 14; 7 steps of the slow one, at 40
  // ms each.
  const auto check = [](const std::string& page) {
    EXPECT_EQ(count(page, "<svg class=\"timeline\""), 2u);
    EXPECT_TRUE(contains(page, "14 steps in 300 ms, up to 5 messages in flight"));
    EXPECT_TRUE(contains(page, "7 steps in 300 ms, up to 1 message in flight"));
    EXPECT_TRUE(contains(page, "wait for what is due"));
    EXPECT_FALSE(contains(page, "class=\"wait\""));
  };
  check(read(path("page.html")));
  json kept = json::parse(read(path("rows.json")));
  check(page_of(kept));
  kept["runs"][0]["timeline"] = {{"compute", {1, {"forward", -1, 0, 1}, {"<b>", 1, 0, 1}}},
                                 {"messages", "none"}};
  EXPECT_EQ(count(page_of(kept), "<svg class=\"timeline\""), 1u);
  kept["runs"][1]["timeline"] = 7;
  EXPECT_EQ(count(page_of(kept), "<svg class=\"timeline\""), 0u);
  rows("compare --schemes dense " + trainer);
  EXPECT_EQ(count(read(path("calls")), "--trace"), 2u);
}

}  // namespace
