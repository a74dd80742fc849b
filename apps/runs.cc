// runs.cc: runs one `thinwire train` after another.
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

// A folder for the runs' output files. It is removed with this object.
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

// Output files of a run. An empty trace name means no trace.
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

class Runs {
 public:
  Runs(const Training& training, const Ended& ended) : training_(training), ended_(ended) {}

  // Trains once per seed. If one seed has no result, those before it still count.
  void add(const Plan& plan) {
    std::vector<Row> documents;
    try {
      for (int seed = 1; seed <= training_.seeds; ++seed) {
        documents.push_back(train(plan, seed));
        std::cout << std::endl;
      }
    } catch (...) {
      keep(plan, documents);
      throw;
    }
    keep(plan, documents);
  }

  void check() const {
    if (!failures_.empty()) fail(failures_);
  }

 private:
  // With a trace, the run's timeline becomes part of the result.
  Row train(const Plan& plan, int seed) {
    const bool traced = training_.traced && seed == 1;
    const Files files{scratch_.path("run.json"), traced ? scratch_.path("trace.json") : ""};
    std::filesystem::remove(files.json);
    std::filesystem::remove(scratch_.path("trace.json"));
    const Ending ending = run_program(command_of(training_, plan, seed, files));
    Row document = read_json(files.json);
    judge(ending, plan, document.is_object() && document.contains("final"));
    if (!traced) return document;
    const Timeline timeline = timeline_of(read_json(files.trace));
    if (!timeline.empty()) document["timeline"] = kept_timeline(timeline);
    return document;
  }

  // The run has already printed its own message.
  void judge(const Ending& ending, const Plan& plan, bool result) {
    if (ending.interrupted || ending.code == exit_interrupted)
      throw Interrupted("interrupted during the training with " + plan.str());
    const std::string text = "the training with " + plan.str();
    if (ending.good() && !result) fail(text, " wrote no result");
    if (ending.good()) return;
    const std::string reason = text + " ended with " + ending.str() + "; its message is above";
    if (ending.code == exit_bad_input) throw BadInput(reason);
    if (!result) fail(reason);
    failures_ += (failures_.empty() ? "" : "; ") + reason;
  }

  void keep(const Plan& plan, const std::vector<Row>& documents) {
    if (documents.empty()) return;
    Row run = {{"label", plan.label}, {"scheme", plan.scheme}};
    if (plan.basis) run["basis"] = true;
    run.update(over_seeds(documents));
    runs_.push_back(std::move(run));
    ended_(runs_);
  }

  const Training& training_;
  const Ended& ended_;
  const Scratch scratch_;
  Row runs_ = Row::array();
  std::string failures_;
};

}  // namespace

Row read_json(const std::string& path) {
  std::ifstream file(path);
  Row document = Row::parse(file, nullptr, false);
  return document.is_discarded() ? Row() : document;
}

void run_plans(const Training& training, const std::vector<Plan>& plans, const Ended& ended) {
  Runs runs(training, ended);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    std::cout << "== " << i + 1 << "/" << plans.size() << "  " << plans[i].label;
    if (plans[i].label != plans[i].scheme) std::cout << "  (" << plans[i].scheme << ")";
    std::cout << " ==" << std::endl;
    runs.add(plans[i]);
  }
  runs.check();
}

}  // namespace thinwire::apps
