// compare_test.cc: `thinwire compare`: the page of a stored comparison, runs of a stand-in for
// train, rejected input, and a small real comparison if there is a `train`.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/apps/comparing.h"

namespace {

using nlohmann::json;
using thinwire::testing::Compare;
using thinwire::testing::contains;
using thinwire::testing::count;
using thinwire::testing::fault;
using thinwire::testing::fixture;
using thinwire::testing::Outcome;
using thinwire::testing::read;
using thinwire::testing::write;

TEST_F(Compare, PageShowsEveryRun) {
  const json kept = json::parse(read(fixture));
  const std::string page = page_of(kept);
  for (const json& run : kept["runs"]) {
    EXPECT_TRUE(contains(page, run["label"])) << run["label"];
    EXPECT_TRUE(contains(page, ">" + run["scheme"].get<std::string>() + "<")) << run["scheme"];
  }
  for (const char* part : {"Emulated link: 100mbit,1ms", "--preset dgc-ablation", "97.50 %",
                           "a made-up machine", "encode 600 us", "log scale", "2026-11-15"}) {
    EXPECT_TRUE(contains(page, part)) << part;
  }
  EXPECT_EQ(count(page, "<svg class=\"chart\""), 3u);
}

TEST_F(Compare, PageEscapesWhatItIsTold) {
  json kept = json::parse(read(fixture));
  const std::string hostile = "</title><script>alert('1')</script>\"&<b x=\"\x01";
  for (const char* key : {"command", "machine", "link", "date"}) kept[key] = hostile;
  for (const char* key : {"label", "scheme"}) kept["runs"][4][key] = hostile;
  kept["runs"][0]["settings"]["<i>"] = hostile;
  const std::string page = page_of(kept);
  EXPECT_TRUE(contains(page, "&lt;script&gt;alert(&#39;1&#39;)"));
}

// A diverged loss is null in JSON; a run may have one row, or none.
TEST_F(Compare, PageStandsMissingValues) {
  json kept = json::parse(read(fixture));
  for (json& row : kept["runs"][1]["rows"]) row["loss"] = nullptr;
  kept["runs"][1]["final"]["loss"] = nullptr;
  kept["runs"][2]["rows"][3]["loss"] = "wide";
  kept["runs"][2]["rows"].erase(kept["runs"][2]["rows"].begin() + 1, kept["runs"][2]["rows"].end());
  kept["runs"][3]["rows"] = 7;
  kept["runs"][3]["final"]["seconds_per_step"] = 0;
  kept["runs"][4].erase("final");
  page_of(kept);
  for (json& run : kept["runs"]) run["rows"] = json::array();
  EXPECT_TRUE(contains(page_of(kept), "no values"));
  kept["runs"] = {1, "two", nullptr};
  page_of(kept);
  page_of({{"runs", json::array()}});
}

TEST_F(Compare, RunsEverySchemeAndPassesFlagsOn) {
  const json result = rows("compare --schemes dense,dgc:density=0.01,values=sign " + stand_in() +
                           "--model mlp --lr=0.5 --nesterov");
  ASSERT_EQ(result.size(), 2u);
  EXPECT_EQ(result[0]["scheme"], "dense");
  EXPECT_EQ(result[1]["scheme"], "dgc:density=0.01,values=sign");
  EXPECT_EQ(result[1]["speed"], 1);
  const std::string calls = read(path("calls"));
  EXPECT_EQ(calls.rfind("--model mlp --lr=0.5 --nesterov --scheme dense --json ", 0), 0u) << calls;
  EXPECT_TRUE(contains(calls, "--scheme dgc:density=0.01,values=sign --json")) << calls;
  EXPECT_EQ(fault(read(path("page.html"))), "");
  const json kept = json::parse(read(path("rows.json")));
  EXPECT_EQ(kept["runs"][1]["final"]["accuracy"], 0.75);
  EXPECT_TRUE(contains(kept["command"], "--lr=0.5 --nesterov")) << kept["command"];
}

TEST_F(Compare, AblationOfDgc) {
  const json result = rows("compare --preset dgc-ablation:density=0.01 --steps 50 " + stand_in());
  std::vector<std::string> schemes;
  for (const json& row : result) schemes.push_back(row["scheme"]);
  EXPECT_EQ(schemes, (std::vector<std::string>{
                         "dense", "topk:density=0.01,feedback=off", "topk:density=0.01",
                         "dgc:density=0.01,mask=off", "dgc:density=0.01,mask=off,warmup=10",
                         "dgc:density=0.01,mask=on,warmup=10", "dgc:density=0.01,warmup=10"}));
  EXPECT_EQ(result[4]["run"], "+ warm-up");
  EXPECT_EQ(result[5]["run"], "+ factor masking");
  EXPECT_EQ(result[6]["run"], "one pool instead of masking");
  EXPECT_EQ(rows("compare --preset dgc-ablation:clip=1,warmup=7 " + stand_in()).size(), 7u);
}

// The stand-in's accuracy is its seed / 10: 0.1, 0.2, 0.3.
TEST_F(Compare, SeveralSeedsAreAveraged) {
  const std::string by_seed =
      "seed=$(echo \"$*\" | sed 's/.*--seed //; s/ .*//')\n"
      "sed -i \"s/\\\"accuracy\\\":[0-9.]*/\\\"accuracy\\\":0.$seed/\" '" +
      path("result.json") + "'";
  const json result = rows("compare --schemes dense,topk --seeds 3 " + stand_in(by_seed));
  ASSERT_EQ(result.size(), 2u);
  EXPECT_NEAR(result[1]["accuracy"].get<double>(), 0.2, 1e-9);
  EXPECT_EQ(result[1]["seeds"], 3);
  EXPECT_EQ(result[1]["range"], "0.1000 - 0.3000");
  EXPECT_TRUE(contains(read(path("page.html")), "over 3 seeds"));
  const json seeds = json::parse(read(path("rows.json")))["runs"][1]["seed_rows"];
  ASSERT_EQ(seeds.size(), 3u);  // only what curves need of every row
  EXPECT_EQ(seeds[2], json::parse(R"([{"step": 2, "loss": 0.5, "bytes_total": 200,
                                       "seconds_total": 0.5}])"));
  expect_refused("compare --schemes dense --seeds 2 --seed 5 " + stand_in(), {"--seeds", "--seed"});
}

// Values between the steps come from --eval-every. A single value at the end makes no curve.
TEST_F(Compare, AccuracyHasCurvesWhereItWasFollowed) {
  json kept = json::parse(read(fixture));
  kept["runs"][2]["rows"].back()["accuracy"] = 0.5;
  EXPECT_FALSE(contains(page_of(kept), "How the accuracy rises"));
  for (json& row : kept["runs"][2]["rows"]) row["accuracy"] = 0.5;
  EXPECT_TRUE(contains(page_of(kept), "Accuracy against bytes"));
}

TEST_F(Compare, AllIsTheRegistry) {
  const json result = rows("compare --schemes all --steps 50 --lr 0.5 " + stand_in());
  EXPECT_GE(result.size(), 17u);
  EXPECT_EQ(result[0]["scheme"], "dense");
  const std::string calls = read(path("calls"));
  EXPECT_TRUE(contains(calls, "--lr 0.5 --scheme dgc:warmup=10")) << calls;
  EXPECT_TRUE(contains(calls, "--steps 50 --lr 0.001 --scheme signum")) << calls;
}

TEST_F(Compare, MarkersTellSeventeenRunsApart) {
  json kept = json::parse(read(fixture));
  while (kept["runs"].size() < 17) kept["runs"].push_back(kept["runs"][0]);
  const std::string page = page_of(kept), start = "<path class=\"end s";
  std::set<std::string> markers;  // colour and shape, in whatever order the page draws them
  for (std::size_t at = page.find(start); at != std::string::npos; at = page.find(start, at + 1)) {
    const std::string tag = page.substr(at, page.find("/>", at) - at);
    markers.insert(tag.substr(0, tag.find(" transform")) + tag.substr(tag.find(" d=")));
  }
  EXPECT_EQ(markers.size(), 17u);
}

TEST_F(Compare, AFailingRunIsNamed) {
  const std::string failing =
      stand_in("case \"$*\" in *topk*) echo 'no such file' >&2; exit 1;; esac");
  const Outcome outcome = run("compare --schemes dense,topk,dgc " + failing);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.err, "no such file\nthinwire: ")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "scheme topk ended with exit code 1")) << outcome.err;
  EXPECT_FALSE(contains(read(path("calls")), "dgc"));
  EXPECT_TRUE(contains(read(path("page.html")), ">dense<"));  // completed runs are shown

  const Outcome killed = run("compare --schemes dense " + stand_in("kill -9 $$"));
  EXPECT_EQ(killed.code, 1);
  EXPECT_TRUE(contains(killed.err, "scheme dense ended with signal 9")) << killed.err;
  EXPECT_EQ(run("compare --schemes dense " + stand_in("exit 2")).code, 2);
  EXPECT_TRUE(contains(run("compare --schemes dense " + stand_in("exit 0")).err, "no result"));
  EXPECT_EQ(run("compare --schemes dense --trainer /no/such/program").code, 1);
}

// A run that diverged has a result; the others continue.
TEST_F(Compare, AFailingRunWithAResultIsKept) {
  const std::string failing = stand_in("case \"$*\" in *topk*) trap 'exit 1' EXIT;; esac");
  const Outcome outcome =
      run("compare --schemes dense,topk,dgc --json '" + path("rows.json") + "' " + failing);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.err, "scheme topk ended with exit code 1")) << outcome.err;
  EXPECT_EQ(json::parse(read(path("rows.json")))["rows"].size(), 3u);
  EXPECT_TRUE(contains(read(path("page.html")), ">dgc<"));
}

// The signal reaches only compare, while the second seed of topk is running.
TEST_F(Compare, AnInterruptKeepsWhatHasEnded) {
  const std::string waiting =
      stand_in("case \"$*\" in *'--seed 2 --scheme topk'*) kill -INT $PPID; exec sleep 100;; esac");
  const Outcome outcome = run("compare --schemes dense,topk,dgc --seeds 2 --json '" +
                              path("rows.json") + "' " + waiting);
  EXPECT_EQ(outcome.code, 130);
  EXPECT_TRUE(contains(outcome.err, "interrupted during the training with scheme topk"))
      << outcome.err;
  const json kept = json::parse(read(path("rows.json")));
  ASSERT_EQ(kept["rows"].size(), 2u);
  EXPECT_EQ(kept["rows"][0]["seeds"], 2);
  EXPECT_EQ(kept["rows"][1]["scheme"], "topk");
  EXPECT_TRUE(contains(read(path("page.html")), ">topk<"));
  EXPECT_EQ(fault(read(path("page.html"))), "");
  EXPECT_FALSE(contains(read(path("calls")), "dgc"));
}

// When it is killed in the third run, the JSON of the first two remains.
TEST_F(Compare, WritesItsJsonAfterEveryRun) {
  const std::string killing = stand_in("case \"$*\" in *dgc*) kill -9 $PPID;; esac");
  run("compare --schemes dense,topk,dgc --json '" + path("rows.json") + "' " + killing);
  EXPECT_EQ(json::parse(read(path("rows.json")))["rows"].size(), 2u);
}

TEST_F(Compare, RefusesBadUsage) {
  const std::string trainer = stand_in();
  expect_refused("compare " + trainer, {"--schemes", "--methods", "--preset"});
  expect_refused("compare --schemes dense,wings " + trainer, {"wings", "dgc"});
  expect_refused("compare --schemes dgc:density=2 " + trainer, {"density", "2"});
  expect_refused("compare --preset wings " + trainer, {"--preset", "wings", "dgc-ablation"});
  expect_refused("compare --preset dgc-ablation:wings=2 " + trainer, {"wings"});
  expect_refused("compare --preset dgc-ablation --schemes dense " + trainer, {"--schemes"});
  expect_refused("compare --schemes dense --scheme dgc " + trainer, {"--scheme ", "--schemes"});
  expect_refused("compare --schemes dense --save=x " + trainer, {"--save", "single run"});
  expect_refused("compare --schemes dense --report /no/such/folder/f.html", {"/no/such/folder"});
  expect_refused("compare --from /no/such/file", {"--from: there is no file '/no/such/file'"});
  expect_refused("compare --shemes dense " + trainer, {"did you mean '--schemes'?"});
  expect_refused("compare --schemes dense --seeds 0 " + trainer, {"--seeds", "1 to 1000", "'0'"});
  write(path("half.json"), "{\"runs\": [");
  expect_refused("compare --from '" + path("half.json") + "'", {"--from", "half.json"});
  expect_refused("compare --lr 1 --report '" + path("f") + "' --from " + fixture, {"--lr"});
  EXPECT_FALSE(std::filesystem::exists(path("calls")));
}

TEST_F(Compare, RealTraining) {
  const std::string flags = "compare --schemes dense,dgc:density=0.01 --report '" +
                            path("page.html") + "' --data digits --workers 2 --steps 4 ";
  if (!contains(run("train --help").out, "--nesterov")) {
    expect_refused(flags, {"without libtorch", "scheme dense"});
    return;
  }
  const json result = rows(flags);
  ASSERT_EQ(result.size(), 2u);
  EXPECT_EQ(result[0]["steps"], 4);
  EXPECT_GT(result[1]["ratio"], 10);
  EXPECT_EQ(result[1]["replicas"], "identical");
  EXPECT_EQ(fault(read(path("page.html"))), "");
  const Outcome refused =
      run("compare --schemes dgc --wings 2 --report '" + path("page.html") + "'");
  EXPECT_EQ(refused.code, 2);
  EXPECT_TRUE(contains(refused.err, "--wings")) << refused.err;
  EXPECT_TRUE(contains(refused.err, "scheme dgc")) << refused.err;
}

}  // namespace
