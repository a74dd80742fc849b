// report_test.cc: what `thinwire compare` says about its runs: the winner, the cost
// of a result, curves.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/apps/comparing.h"

namespace {

using nlohmann::json;
using thinwire::testing::contains;
using thinwire::testing::count;
using thinwire::testing::Outcome;
using thinwire::testing::read;

using Values = std::vector<double>;

// Rows of 100 steps each, all with an evaluation under `key`.
json rows_of(const std::string& key, const Values& values, double seconds, double bytes) {
  json rows = json::array();
  for (const double value : values) {
    const double step = 100.0 * static_cast<double>(rows.size() + 1);
    rows.push_back({{"step", step},
                    {"loss", 1},
                    {"bytes_total", step * bytes},
                    {"seconds_total", step * seconds}});
    rows.back()[key] = value;
  }
  return rows;
}

json run_of(const std::string& name, const std::string& key, const Values& values, double seconds,
            double bytes) {
  json run = {{"label", name},
              {"scheme", name},
              {"rows", rows_of(key, values, seconds, bytes)},
              {"final",
               {{"steps", 100 * values.size()},
                {"loss", 1},
                {"seconds_per_step", seconds},
                {"bytes_per_step", bytes},
                {"ratio", 1e6 / bytes}}}};
  run["final"][key] = values.back();
  return run;
}

class Report : public thinwire::testing::Compare {
 protected:
  // The terminal output. The page and the rows are stored beside it.
  std::string said(const json& runs) {
    page_ = page_of({{"runs", runs}});
    const Outcome outcome = run("compare --from '" + path("kept.json") + "' --report '" +
                                path("page.html") + "' --json '" + path("rows.json") + "'");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    rows_ = json::parse(read(path("rows.json")))["rows"];
    return outcome.out;
  }

  // Both the terminal and the page contain the sentence.
  void expect_both(const std::string& out, const std::string& sentence) const {
    EXPECT_TRUE(contains(out, sentence)) << "no '" << sentence << "' in:\n" << out;
    EXPECT_TRUE(contains(page_, sentence)) << sentence;
  }

  std::string page_;
  json rows_;
};

// By bytes alone powersgd would win: it sends a third of onebit's bytes, but is hardly
// faster than dense.
TEST_F(Report, TimeToTheSameAccuracyDecides) {
  const Values values = {0.5, 0.9, 0.972, 0.975};
  const std::string out = said({run_of("dense", "accuracy", values, 0.0564, 1000000),
                                run_of("powersgd", "accuracy", values, 0.0564 / 1.27, 10000),
                                run_of("onebit", "accuracy", values, 0.01, 32000)});
  expect_both(out,
              "onebit reaches 97.5 % accuracy first, in 4 s, 5.64 times sooner than dense, and "
              "sends 12.80 MB per worker until then, 31.2 times less.");
  expect_both(out,
              "powersgd needs the fewest bytes: it gets there in 17.8 s, 1.27 times sooner than "
              "dense, and sends 4.00 MB per worker until then, 100 times less.");
  EXPECT_TRUE(contains(out, "time to 97.5 %")) << out;
  EXPECT_NEAR(rows_[2]["target_seconds"].get<double>(), 4, 1e-9);
  EXPECT_EQ(rows_[2]["target_bytes"], 12800000);
  EXPECT_EQ(rows_[2]["target"], 0.975);
}

// 0.9712 becomes a target of 97.1 %, and the first evaluation that reaches it counts. A run that
// ends more than a point below the baseline does not lower the target.
TEST_F(Report, TargetIsWhatAllGoodRunsReach) {
  const std::string out = said({run_of("dense", "accuracy", {0.5, 0.98, 0.975}, 0.1, 1000),
                                run_of("topk", "accuracy", {0.5, 0.9, 0.9712}, 0.02, 10),
                                run_of("naive", "accuracy", {0.7, 0.736, 0.72}, 0.01, 5)});
  expect_both(out, "topk reaches 97.1 % accuracy first, in 6 s, 3.33 times sooner than dense");
  expect_both(out, "No other run needs fewer bytes.");
  expect_both(out, "naive never reaches it: its best is 73.60 %.");
  EXPECT_EQ(rows_[0]["target_steps"], 200);
  EXPECT_FALSE(rows_[2].contains("target_seconds"));
  EXPECT_TRUE(contains(page_, "Time and bytes to 97.1 % accuracy"));
  EXPECT_TRUE(contains(page_, ">never reaches it: its best is 73.60 %<"));
  EXPECT_TRUE(contains(out, "until the first evaluation at the target")) << out;
}

TEST_F(Report, EqualTimesAreDecidedByBytes) {
  const Values values = {0.9};
  const std::string out = said({run_of("dense", "accuracy", values, 0.1, 1000),
                                run_of("fast", "accuracy", values, 0.01, 100),
                                run_of("lean", "accuracy", values, 0.0104, 50)});
  expect_both(out, "lean reaches 90.0 % accuracy first, in 1.04 s, 9.62 times sooner than dense");
  expect_both(out, "fast takes 1 s, equal within 5 %: fewer bytes decide.");
  EXPECT_TRUE(contains(out, "evaluated at the end only")) << out;
  EXPECT_TRUE(contains(out, "--eval-every N")) << out;
  EXPECT_TRUE(contains(page_, "evaluated at the end only"));
}

// Virtual workers with a --link: as train writes them, under other names than measured times.
json estimated(json run) {
  run["virtual"] = 4;
  run["final"]["compute_seconds"] = 0.01;
  const auto rename = [](json& row, const std::string& key) {
    row["estimated_" + key] = row[key];
    row.erase(key);
  };
  rename(run["final"], "seconds_per_step");
  for (json& row : run["rows"]) rename(row, "seconds_total");
  return run;
}

json timeless(json run) {
  run["virtual"] = 4;
  run["final"].erase("seconds_per_step");
  for (json& row : run["rows"]) row.erase("seconds_total");
  return run;
}

TEST_F(Report, EstimatedTimesDecideAndSayThatTheyAre) {
  const Values values = {0.5, 0.972, 0.975};
  const std::string out = said({estimated(run_of("dense", "accuracy", values, 0.1, 1000)),
                                estimated(run_of("onebit", "accuracy", values, 0.02, 32)),
                                estimated(run_of("topk", "accuracy", values, 0.05, 10))});
  expect_both(out,
              "onebit reaches 97.5 % accuracy first, in an estimated 6 s, 5.00 times sooner than "
              "dense, and sends 9.60 kB per worker until then, 31.2 times less.");
  expect_both(out, "topk needs the fewest bytes: it gets there in an estimated 15 s, 2.00 times");
  expect_both(out, "Times are estimated for the --link");
  EXPECT_TRUE(contains(out, "est. time to 97.5 %")) << out;
  EXPECT_TRUE(contains(out, "est. time/step")) << out;
  EXPECT_NEAR(rows_[1]["target_seconds"].get<double>(), 6, 1e-9);
  EXPECT_EQ(rows_[1]["speed"], 5);
  for (const char* part : {"Estimated times: ", ">estimated time<", ">estimated time per step<",
                           "estimated time in training", "in estimated steps per second"}) {
    EXPECT_TRUE(contains(page_, part)) << part;
  }
  for (const char* part : {"Emulated link", ">time<", "Where a step's time goes"})
    EXPECT_FALSE(contains(page_, part)) << part;
}

// onebit would be the fastest by what is missing here.
TEST_F(Report, WithoutTimesBytesDecide) {
  const Values values = {0.5, 0.972, 0.975};
  const std::string out = said({timeless(run_of("dense", "accuracy", values, 0.1, 1000)),
                                timeless(run_of("onebit", "accuracy", values, 0.01, 32)),
                                timeless(run_of("topk", "accuracy", {0.5, 0.6, 0.7}, 0.05, 10)),
                                timeless(run_of("dgc", "accuracy", values, 0.2, 20))});
  expect_both(
      out,
      "dgc reaches 97.5 % accuracy with the fewest bytes: it sends 6.00 kB per worker until "
      "then, 50.0 times less than dense.");
  expect_both(out, "topk never reaches it: its best is 70.00 %.");
  expect_both(out, "Virtual workers without a --link have no time, so bytes decide.");
  EXPECT_TRUE(contains(out, "bytes to 97.5 %")) << out;
  for (const char* key : {"target_seconds", "speed"}) EXPECT_FALSE(rows_[3].contains(key)) << key;
  EXPECT_EQ(rows_[3]["target_bytes"], 6000);
  for (const char* part : {" against time", "sooner", "A whole training", " first, "})
    EXPECT_FALSE(contains(page_, part)) << part;
  const std::string alone = said({timeless(run_of("dense", "accuracy", {0.9}, 0.1, 1000)),
                                  timeless(run_of("topk", "accuracy", {0.9}, 0.1, 2000))});
  expect_both(alone,
              "dense reaches 90.0 % accuracy with the fewest bytes: it sends 100.00 kB per "
              "worker until then.");
  expect_both(alone, "these are the bytes of the whole training");
}

TEST_F(Report, TheBasisMayWin) {
  const std::string out = said({run_of("dense", "perplexity", {40, 20.11}, 0.1, 1000),
                                run_of("topk", "perplexity", {50, 20.52}, 0.2, 2000),
                                run_of("dgc", "perplexity", {50, 20.8}, 0.1, 10)});
  expect_both(out, "dense reaches a perplexity of 20.6 first, in 20 s, and sends 200.00 kB");
  expect_both(out, "dgc never reaches it: its best is 20.8.");
}

TEST_F(Report, AWordErrorRateFallsAndIsAShare) {
  const std::string out = said({run_of("dense", "word_error", {0.9, 0.31, 0.1072}, 0.1, 1000),
                                run_of("topk", "word_error", {0.8, 0.3, 0.1168}, 0.2, 100),
                                run_of("dgc", "word_error", {0.9, 0.4, 0.1173}, 0.1, 10)});
  expect_both(out, "dense reaches a word error rate of 11.7 % first, in 30 s");
  expect_both(out, "dgc never reaches it: its best is 11.73 %.");
  EXPECT_TRUE(contains(page_, "How the word error rate falls"));
}

// A run without values is reported as such. Without values of the baseline there is no verdict.
TEST_F(Report, LossCountsWhereNothingWasEvaluated) {
  json runs = {run_of("dense", "loss", {2, 0.5, 0.41}, 0.1, 1000),
               run_of("topk", "loss", {2, 0.6, 0.4}, 0.05, 10)};
  std::string out = said(runs);
  expect_both(out, "topk reaches a training loss of 0.41 first, in 15 s, 2.00 times sooner");
  EXPECT_TRUE(contains(out, "Nothing was evaluated")) << out;
  runs[1]["rows"] = json::array();
  runs[1].erase("final");
  out = said(runs);
  expect_both(out, "topk was not evaluated.");
  runs[0]["rows"] = json::array();
  runs[0].erase("final");
  EXPECT_FALSE(contains(said(runs), "reaches"));
}

// Methods are judged by the same clock. The baseline is FedAvg, whatever its position.
TEST_F(Report, MethodsAreJudgedByTimeToo) {
  json runs = {run_of("dga:delay=20", "accuracy", {0.8, 0.9, 0.95}, 0.02, 1000),
               run_of("fedavg", "accuracy", {0.9, 0.94, 0.95}, 0.05, 1000)};
  runs[1]["basis"] = true;
  expect_both(said(runs),
              "dga:delay=20 reaches 95.0 % accuracy first, in 6 s, 2.50 times sooner than fedavg, "
              "and sends 300.00 kB per worker until then, as much.");
}

TEST_F(Report, SeedsHaveMeansAndBands) {
  json runs = {run_of("dense", "accuracy", {0.9, 0.95, 0.96}, 0.1, 1000),
               run_of("topk", "accuracy", {0.9, 0.95, 0.96}, 0.02, 10)};
  EXPECT_EQ(count(page_of({{"runs", runs}}), "<path class=\"band"), 0u);
  runs[1]["seed_rows"] = {runs[1]["rows"], rows_of("accuracy", {0.8, 0.96, 0.96}, 0.04, 10),
                          rows_of("accuracy", {0.85, 0.97, 0.97}, 0.03, 10)};
  runs[1]["final"]["seeds"] = 3;
  const std::string out = said(runs);
  // 6, 8 and 6 s; 300, 200 and 200 steps.
  expect_both(out, "in 6.67 s (6 s to 8 s by seed), 4.50 times sooner");
  EXPECT_EQ(count(page_, "<path class=\"band s1"), 3u);  // for the accuracy; the loss is always 1
  EXPECT_TRUE(contains(page_, "200 \u2013 300"));
  EXPECT_TRUE(contains(page_, "bands reach from the lowest seed to the highest"));
  EXPECT_TRUE(contains(page_, "accuracy on the test set 85 %</title>"));  // the mean of 90, 80, 85
  runs[1]["seed_rows"][1].erase(2);
  runs[1]["seed_rows"][1][1]["accuracy"] = 0.5;
  expect_both(said(runs), "topk reaches it with 2 of 3 seeds only.");
}

// Reports every 25 steps and evaluations every 12 produce rows of one step, here with a loss of 9.
TEST_F(Report, RowsOfOneStepAreNoSpikes) {
  json rows = json::array();
  for (const int step : {12, 24, 25, 36, 48, 50, 60, 61}) {
    rows.push_back({{"step", step},
                    {"loss", step == 25 || step == 61 ? 9 : 1},
                    {"bytes_total", 10 * step},
                    {"seconds_total", step}});
  }
  json run = run_of("dense", "accuracy", {0.5}, 1, 10);
  run["rows"] = rows;
  page_ = page_of({{"runs", {run}}});
  EXPECT_FALSE(contains(page_, "training loss 9</title>"));
  EXPECT_TRUE(contains(page_, "step 36, training loss 1.667</title>"));  // (9 + 11) / 12
  EXPECT_TRUE(contains(page_, "step 61, training loss 1.615</title>"));  // (12 + 9) / 13
  EXPECT_EQ(count(page_, "<circle class=\"hit\""), 3 * 5u);
}

// 300 steps as measured; each further step costs as much as in the second half: 0.02 s and 10 B.
TEST_F(Report, WholeTrainingsAreExtrapolatedFromTheSecondHalf) {
  json run = run_of("dgc", "accuracy", {0.5, 0.6, 0.7}, 0.05, 10);
  for (json& row : run["rows"]) {
    row["bytes_total"] = 100000 + 10 * row["step"].get<double>();
    row["seconds_total"] = 9 + 0.02 * row["step"].get<double>();
  }
  page_ = page_of({{"runs", {run}}});
  EXPECT_TRUE(contains(page_, "15 s</td>"));
  EXPECT_TRUE(contains(page_, "1.00 MB</td>"));   // 3 kB + 99,700 * 10 B
  EXPECT_TRUE(contains(page_, "33.5 min</td>"));  // 15 s + 99,700 * 0.02 s
  EXPECT_TRUE(contains(page_, "extrapolated"));
  run["final"]["steps"] = 60000;
  EXPECT_TRUE(contains(page_of({{"runs", {run}}}), "time of 1,000,000 steps"));
}

TEST_F(Report, TheSettingComesFirst) {
  const std::string page = page_of(json::parse(read(thinwire::testing::fixture)));
  const std::size_t verdict = page.find("class=\"verdict\"");
  ASSERT_NE(verdict, std::string::npos);
  for (const char* fact : {"mlp", "digits", "4", "32 per worker", "600", "100mbit,1ms, emulated",
                           "a made-up machine, 4 cores", "2026-11-15 07:00 UTC"}) {
    EXPECT_LT(page.find("<dd>" + std::string(fact) + "</dd>"), verdict) << fact;
  }
  EXPECT_LT(page.find("--preset dgc-ablation"), verdict);
}

}  // namespace
