// runs.cc: one `thinwire train` after the other.
// SPDX-License-Identifier: Apache-2.0
#include "apps/runs.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "apps/process.h"
#include "apps/seeds.h"
#include "apps/timeline.h"
#include "apps/verb.h"
#include "thinwire/core/error.h"

namespace thinwire::apps {
namespace {

// A folder for the files that the runs leave; gone with this object.
class Scratch {
 public:
  Scratch() {
    std::string pattern = std::filesystem::temp_directory_path() / "thinwire_compare_XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) fail("cannot make the folder '", pattern, "'");
    folder_ = pattern;
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string path(const std::string& name) const { return folder_ / name; }

 private:
  std::filesystem::path folder_;
};

// Files that a run leaves; no trace where it is empty.
struct Files {
  std::string json, trace;
};

Words command_of(const Training& training, const Plan& plan, int seed, const Files& files) {
  Words words = training.trainer.empty() ? Words{this_program(), "train"} : Words{training.trainer};
  const auto add = [&](const Words& more) { words.insert(words.end(), more.begin(), more.end()); };
  Words passed = without(training.passed, "--scheme");
  for (std::size_t i = 0; i < plan.flags.size(); i += 2) passed = without(passed, plan.flags[i]);
  add(passed);
  add(plan.flags);
  if (training.seeds > 1) add({"--seed", std::to_string(seed)});
  add({"--scheme", plan.scheme});
  if (!files.trace.empty()) add({"--trace", files.trace});
  add({"--json", files.json});
  return words;
}

// Its own message has been shown by the run itself.
void check_ending(const Ending& ending, const Plan& plan) {
  if (ending.good()) return;
  const std::string text = "the training with " + plan.str() + " ended with " + ending.str();
  if (ending.code == exit_bad_input) throw BadInput(text + "; its message is above");
  fail(text, ending.interrupted ? "" : "; its message is above");
}

// With a trace its timeline becomes part of the result.
Row run_once(const Training& training, const Plan& plan, int seed, const Files& files) {
  std::filesystem::remove(files.json);
  if (!files.trace.empty()) std::filesystem::remove(files.trace);
  check_ending(run_program(command_of(training, plan, seed, files)), plan);
  Row document = read_json(files.json);
  if (!document.is_object() || !document.contains("final")) {
    fail("the training with ", plan.str(), " wrote no result");
  }
  if (files.trace.empty()) return document;
  const Timeline timeline = timeline_of(read_json(files.trace));
  if (!timeline.empty()) document["timeline"] = kept_timeline(timeline);
  return document;
}

Row run_plan(const Training& training, const Plan& plan, const Scratch& scratch) {
  std::vector<Row> documents;
  for (int seed = 1; seed <= training.seeds; ++seed) {
    const bool traced = training.traced && seed == 1;
    const Files files{scratch.path("run.json"), traced ? scratch.path("trace.json") : ""};
    documents.push_back(run_once(training, plan, seed, files));
    std::cout << std::endl;
  }
  Row run = {{"label", plan.label}, {"scheme", plan.scheme}};
  if (plan.basis) run["basis"] = true;
  run.update(over_seeds(documents));
  return run;
}

}  // namespace

Row read_json(const std::string& path) {
  std::ifstream file(path);
  Row document = Row::parse(file, nullptr, false);
  return document.is_discarded() ? Row() : document;
}

Row run_plans(const Training& training, const std::vector<Plan>& plans) {
  const Scratch scratch;
  Row runs = Row::array();
  for (std::size_t i = 0; i < plans.size(); ++i) {
    std::cout << "== " << i + 1 << "/" << plans.size() << "  " << plans[i].label;
    if (plans[i].label != plans[i].scheme) std::cout << "  (" << plans[i].scheme << ")";
    std::cout << " ==" << std::endl;
    runs.push_back(run_plan(training, plans[i], scratch));
  }
  return runs;
}

}  // namespace thinwire::apps
