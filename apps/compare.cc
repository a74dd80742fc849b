// compare.cc: `thinwire compare`: trains once per scheme or method and seed, then shows a table, a
// verdict and a page.
// SPDX-License-Identifier: Apache-2.0
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

#include "apps/flags.h"
#include "apps/nearest.h"
#include "apps/plans.h"
#include "apps/report_html.h"
#include "apps/report_table.h"
#include "apps/runs.h"
#include "apps/target.h"
#include "apps/timeline_svg.h"
#include "apps/verb.h"
#include "thinwire/core/error.h"

namespace thinwire::apps {
namespace compare_verb {
namespace {

constexpr const char* usual_report = "thinwire_report.html";

struct Settings {
  std::string schemes, methods, preset, from, timeline;
  std::string report = usual_report;
  std::string json;
  int seeds = 1;
  std::string trainer;  // a program that replaces our own `train`, for tests
  Words passed;         // flags for train
};

// ---- what to run ----

// Flags that make sense for a single run only: the next run would overwrite the file, or resume
// from the wrong state.
void check_passed(const Settings& settings) {
  for (const char* flag : {"--scheme", "--save", "--save-every", "--resume", "--trace"}) {
    const bool scheme = std::string(flag) == "--scheme";
    if (!has_flag(settings.passed, flag) || (scheme && !settings.methods.empty())) continue;
    throw BadInput(std::string(flag) + " belongs to a single run: use `thinwire train`" +
                   (scheme ? ", or --schemes here" : ""));
  }
  if (settings.seeds > 1 && has_flag(settings.passed, "--seed"))
    throw BadInput("--seeds N trains with the seeds 1 to N: leave --seed out");
}

std::vector<Plan> plans_of(const Settings& settings) {
  if (!settings.preset.empty()) return preset_plans(settings.preset, settings.passed);
  if (!settings.methods.empty()) return method_plans(settings.methods, settings.passed);
  if (!settings.schemes.empty()) return scheme_plans(settings.schemes, settings.passed);
  const std::string word = settings.passed.empty() ? "" : settings.passed.front();
  throw BadInput("compare: expected --schemes A,B,..., --methods A,B,... or --preset dgc-ablation" +
                 did_you_mean(word, Words{"--schemes", "--methods", "--preset"}) +
                 "; see thinwire compare --help");
}

// ---- what is recorded ----

std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc)};
}

// Quoted for a shell.
std::string quoted(const std::string& word) {
  constexpr const char* plain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=:,./+%@";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  std::string result = "'";
  for (const char c : word) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string command_text(const Settings& settings) {
  std::string text = "thinwire compare";
  if (!settings.schemes.empty()) text += " --schemes " + quoted(settings.schemes);
  if (!settings.methods.empty()) text += " --methods " + quoted(settings.methods);
  if (!settings.preset.empty()) text += " --preset " + quoted(settings.preset);
  if (settings.seeds > 1) text += " --seeds " + std::to_string(settings.seeds);
  for (const std::string& word : settings.passed) text += " " + quoted(word);
  return text;
}

// The document without its runs.
Row begun(const Settings& settings) {
  Row comparison = about_machine();
  comparison["command"] = command_text(settings);
  comparison["date"] = date_text();
  comparison["link"] = passed_value(settings.passed, "--link");
  comparison["runs"] = Row::array();
  return comparison;
}

Row kept(const Settings& settings) {
  Row comparison = read_json(settings.from);
  const bool good =
      comparison.is_object() && comparison.contains("runs") && comparison["runs"].is_array();
  if (!good || !settings.passed.empty()) {
    throw BadInput(good ? "--from trains nothing: it takes no '" + settings.passed[0] + "'"
                        : "--from: expected what `thinwire compare --json` writes, in '" +
                              settings.from + "'");
  }
  return comparison;
}

std::vector<Column> columns_of(const Row& runs) {
  const std::optional<Target> target = target_of(runs);
  const std::string level = target ? target->brief() : "";
  const bool estimated = target && target->clock == RunClock::estimated;
  return {
      {"run", "run", Show::text},
      {"scheme", "scheme", Show::text},
      {"accuracy", "accuracy", Show::number},
      {"perplexity", "perplexity", Show::number},
      {"word_error", "word error", Show::number},
      {"seeds", "seeds", Show::count},
      {"range", "from - to", Show::text},
      {"loss", "loss", Show::number},
      {"target_seconds", (estimated ? "est. time to " : "time to ") + level, Show::seconds},
      {"target_bytes", "bytes to " + level, Show::bytes},
      {"bytes_per_step", "bytes/step", Show::bytes},
      {"ratio", "ratio", Show::number},
      {"last_ratio", "ratio at end", Show::number},
      {"seconds_per_step", "time/step", Show::seconds},
      {"estimated_seconds_per_step", "est. time/step", Show::seconds},
      {"speed", "speed", Show::number},
      {"speed_up", "speed-up", Show::number},
      {"replicas", "replicas", Show::text},
  };
}

void print_verdict(const Row& runs) {
  const std::vector<std::string> sentences = verdict(runs);
  for (const std::string& sentence : sentences) std::cout << sentence << '\n';
  if (!sentences.empty()) std::cout << target_note(*target_of(runs)) << "\n\n";
}

void write_page(const std::string& path, const std::string& page) {
  std::ofstream file(path);
  file << page;
  file.close();
  if (!file) fail("cannot write '", path, "'");
  std::cout << "report: " << std::filesystem::absolute(path).lexically_normal().string()
            << std::endl;
}

void draw_timeline(const Settings& settings) {
  if (!settings.passed.empty())
    throw BadInput("--timeline trains nothing: it takes no '" + settings.passed[0] + "'");
  const Timeline timeline = timeline_of(read_json(settings.timeline));
  if (common_span({timeline}) <= 0) {
    throw BadInput("--timeline: expected what `thinwire train --trace` writes, in '" +
                   settings.timeline + "'");
  }
  write_page(settings.report, timeline_file(timeline));
}

void save_json(const Settings& settings, const Row& comparison) {
  if (settings.json.empty()) return;
  write_json(settings.json, comparison, headline(comparison["runs"]));
}

void show(const Settings& settings, const Row& comparison) {
  print_table(std::cout, columns_of(comparison["runs"]), headline(comparison["runs"]));
  save_json(settings, comparison);
  std::cout << '\n';
  print_verdict(comparison["runs"]);
  write_page(settings.report, report_html(comparison));
}

// However this ends, the completed runs are shown.
void train_and_show(const Settings& settings) {
  check_passed(settings);
  const std::vector<Plan> plans = plans_of(settings);
  if (const std::string wrong = check_output_path(settings.report); !wrong.empty())
    throw BadInput("--report: " + wrong);
  Row comparison = begun(settings);
  try {
    run_plans({.passed = settings.passed,
               .seeds = settings.seeds,
               .traced = !settings.methods.empty() && !has_flag(settings.passed, "--virtual"),
               .trainer = settings.trainer},
              plans, [&](const Row& runs) {
                comparison["runs"] = runs;
                save_json(settings, comparison);
              });
  } catch (...) {
    if (!comparison["runs"].empty()) show(settings, comparison);
    throw;
  }
  show(settings, comparison);
}

void run(const Settings& settings) {
  if (!settings.timeline.empty()) return draw_timeline(settings);
  settings.from.empty() ? train_and_show(settings) : show(settings, kept(settings));
}

// Where the runs come from. One source at a time.
void describe_sources(CLI::App& verb, Settings& settings) {
  const std::vector<CLI::Option*> sources = {
      verb.add_option("--schemes", settings.schemes,
                      "Schemes to train with, one run each; `all` stands for every scheme")
          ->type_name("A,B:KEY=VALUE,..."),
      verb.add_option("--methods", settings.methods,
                      "Ways to average, one run each: sync, fedavg:local=K, dga:delay=D,\n"
                      "delayed:delay=D. All except sync take local=K, dga also takes\n"
                      "correction=NAME, and all take scheme=NAME and its options")
          ->type_name("A,B:KEY=VALUE,..."),
      verb.add_option("--preset", settings.preset,
                      "Preset of runs. dgc-ablation: dense, then DGC one idea at a time;\n"
                      "takes scheme options, as in dgc-ablation:density=0.01,warmup=200")
          ->type_name("NAME[:KEY=VALUE,...]"),
      verb.add_option("--from", settings.from, "File written by --json, to show without training")
          ->type_name("FILE")
          ->check(check_input_path),
      verb.add_option("--timeline", settings.timeline,
                      "File written by `thinwire train --trace`, to draw without training;\n"
                      "--report names the SVG file")
          ->type_name("FILE")
          ->check(check_input_path)};
  for (std::size_t i = 0; i < sources.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) sources[i]->excludes(sources[k]);
  }
}

}  // namespace
}  // namespace compare_verb

void add_compare(CLI::App& parent) {
  using namespace compare_verb;
  const auto settings = std::make_shared<Settings>();
  CLI::App* verb = add_verb(
      parent, "compare",
      "Train once per scheme or method (and seed), then show the runs side by side: a table\n"
      "here, and a page with loss against steps, bytes and time. All other flags are those of\n"
      "`thinwire train`",
      "thinwire compare --schemes dense,topk,dgc:density=0.001,warmup=100 --workers 4 \\\n"
      "    --steps 500 --link 100mbit,1ms\n"
      "  thinwire compare --methods sync,fedavg:local=5,dga:delay=20 --workers 4 --steps 500 \\\n"
      "    --link 1gbit,50ms",
      settings->json);
  describe_sources(*verb, *settings);
  verb->add_option("--seeds", settings->seeds,
                   "Seeds per run, from 1 to N; the table shows their means")
      ->type_name("N")
      ->check(whole_in(1, 1000))
      ->capture_default_str();
  auto* report = verb->add_option("--report", settings->report, "Page to write")
                     ->type_name("FILE")
                     ->check(check_output_path)
                     ->capture_default_str();
  verb->get_option("--timeline")->needs(report)->excludes(verb->get_option("--json"));
  // For tests. The empty group hides it from --help.
  verb->add_option("--trainer", settings->trainer, "PROGRAM")->group("");
  verb->allow_extras();
  verb->callback([settings, verb] {
    settings->passed = verb->remaining();
    run(*settings);
  });
}

}  // namespace thinwire::apps
