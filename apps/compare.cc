// compare.cc: `thinwire compare`: trains once per scheme and seed, then one table and one page.
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>

#include "apps/process.h"
#include "apps/report_html.h"
#include "apps/seeds.h"
#include "apps/verb.h"
#include "thinwire/core/error.h"

namespace thinwire::apps {
namespace {

constexpr const char* usual_report = "thinwire_report.html";

struct Settings {
  std::string schemes, preset, from;
  std::string report = usual_report;
  std::string json;
  int seeds = 1;
  std::string trainer;              // a program instead of our own `train`, for tests
  std::vector<std::string> passed;  // flags of train
};

struct Plan {
  std::string label;
  std::string scheme;
};

// ---- what to run ----

// The value of a flag among those passed on: "--flag value" or "--flag=value".
std::string passed_value(const std::vector<std::string>& passed, const std::string& flag) {
  for (std::size_t i = 0; i < passed.size(); ++i) {
    if (passed[i] == flag && i + 1 < passed.size()) return passed[i + 1];
    if (passed[i].starts_with(flag + "=")) return passed[i].substr(flag.size() + 1);
  }
  return "";
}

// What only one run can have: the next would overwrite it, or go on from the wrong state.
void check_passed(const std::vector<std::string>& passed) {
  for (const char* flag : {"--scheme", "--save", "--save-every", "--resume", "--trace"}) {
    for (const std::string& word : passed) {
      if (word != flag && !word.starts_with(std::string(flag) + "=")) continue;
      throw BadInput(std::string(flag) + " belongs to a single run: use `thinwire train`" +
                     (word.starts_with("--scheme") ? ", or --schemes here" : ""));
    }
  }
}

// A fifth of the training, when its length was given in steps.
std::string usual_warmup(const std::vector<std::string>& passed) {
  const long steps = std::atol(passed_value(passed, "--steps").c_str());
  return steps > 0 ? std::to_string(std::max(1L, steps / 5)) : "100";
}

std::string taken(Config& options, const std::string& name, const std::string& fallback) {
  const auto found = options.options.find(name);
  if (found == options.options.end()) return fallback;
  std::string value = found->second;
  options.options.erase(found);
  return value;
}

std::string scheme_with(const Config& base, const std::string& scheme, const std::string& key = "",
                        const std::string& value = "") {
  Config config{scheme, base.options};
  if (!key.empty()) config.options[key] = value;
  return config.str();
}

// Lin et al. 2018 build it up from gradient dropping, one idea after the other.
std::vector<Plan> dgc_ablation(Config options, const std::vector<std::string>& passed) {
  const std::string warmup = taken(options, "warmup", usual_warmup(passed));
  const std::string clip = taken(options, "clip", "");
  std::vector<Plan> plans = {
      {"dense", "dense"},
      {"naive: the rest is forgotten", scheme_with(options, "topk", "feedback", "off")},
      {"+ accumulation", scheme_with(options, "topk")},
      {"+ momentum correction", scheme_with(options, "dgc", "mask", "off")}};
  options.options["warmup"] = warmup;
  plans.push_back({"+ warm-up", scheme_with(options, "dgc", "mask", "off")});
  if (!clip.empty()) options.options["clip"] = clip;
  plans.push_back({"all: + factor masking" + std::string(clip.empty() ? "" : ", clipping"),
                   scheme_with(options, "dgc")});
  return plans;
}

std::vector<Plan> preset_plans(const Settings& settings) {
  Config preset;
  try {
    preset = Config::parse(settings.preset);
  } catch (const Error& error) {
    throw BadInput(std::string("--preset: ") + error.what());
  }
  if (preset.scheme != "dgc-ablation") {
    throw BadInput("--preset: expected dgc-ablation, got '" + preset.scheme + "'");
  }
  std::vector<Plan> plans = dgc_ablation(preset, settings.passed);
  for (const Plan& plan : plans) (void)parse_scheme(plan.scheme);
  return plans;
}

std::vector<Plan> plans_of(const Settings& settings) {
  if (!settings.preset.empty()) return preset_plans(settings);
  if (settings.schemes.empty()) {
    throw BadInput("expected --schemes A,B,... or --preset dgc-ablation; see `thinwire schemes`");
  }
  std::vector<Plan> plans;
  for (const Config& config : parse_schemes(settings.schemes)) {
    plans.push_back({config.str(), config.str()});
  }
  return plans;
}

// ---- running it ----

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

// Null when it cannot be read.
Row read_json(const std::string& path) {
  std::ifstream file(path);
  Row document = Row::parse(file, nullptr, false);
  return document.is_discarded() ? Row() : document;
}

std::vector<std::string> command_of(const Settings& settings, const Plan& plan, int seed,
                                    const std::string& json) {
  std::vector<std::string> words;
  if (settings.trainer.empty()) {
    words = {this_program(), "train"};
  } else {
    words = {settings.trainer};
  }
  words.insert(words.end(), settings.passed.begin(), settings.passed.end());
  if (settings.seeds > 1) words.insert(words.end(), {"--seed", std::to_string(seed)});
  words.insert(words.end(), {"--scheme", plan.scheme, "--json", json});
  return words;
}

// Its own message has been shown by the run itself.
void check_ending(const Ending& ending, const Plan& plan) {
  if (ending.good()) return;
  const std::string text =
      "the training with scheme " + plan.scheme + " ended with " + ending.str();
  if (ending.code == exit_bad_input) throw BadInput(text + "; its message is above");
  fail(text, ending.interrupted ? "" : "; its message is above");
}

Row run_once(const Settings& settings, const Plan& plan, int seed, const Scratch& scratch) {
  const std::string json = scratch.path("run.json");
  std::filesystem::remove(json);
  check_ending(run_program(command_of(settings, plan, seed, json)), plan);
  Row document = read_json(json);
  if (!document.is_object() || !document.contains("final")) {
    fail("the training with scheme ", plan.scheme, " wrote no result");
  }
  return document;
}

Row run_plan(const Settings& settings, const Plan& plan, const Scratch& scratch) {
  std::vector<Row> documents;
  for (int seed = 1; seed <= settings.seeds; ++seed) {
    documents.push_back(run_once(settings, plan, seed, scratch));
    std::cout << std::endl;
  }
  Row run = {{"label", plan.label}, {"scheme", plan.scheme}};
  run.update(over_seeds(documents));
  return run;
}

Row run_all(const Settings& settings, const std::vector<Plan>& plans) {
  const Scratch scratch;
  Row runs = Row::array();
  for (std::size_t i = 0; i < plans.size(); ++i) {
    std::cout << "== " << i + 1 << "/" << plans.size() << "  " << plans[i].label;
    if (plans[i].label != plans[i].scheme) std::cout << "  (" << plans[i].scheme << ")";
    std::cout << " ==" << std::endl;
    runs.push_back(run_plan(settings, plans[i], scratch));
  }
  return runs;
}

// ---- what is kept of it ----

std::string date_text() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", &utc)};
}

// As a shell would take it.
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
  if (!settings.preset.empty()) text += " --preset " + quoted(settings.preset);
  if (settings.seeds > 1) text += " --seeds " + std::to_string(settings.seeds);
  for (const std::string& word : settings.passed) text += " " + quoted(word);
  return text;
}

Row compared(const Settings& settings) {
  check_passed(settings.passed);
  if (settings.seeds > 1 && !passed_value(settings.passed, "--seed").empty())
    throw BadInput("--seeds N trains with the seeds 1 to N: leave --seed out");
  const std::vector<Plan> plans = plans_of(settings);
  Row comparison = about_machine();
  comparison["command"] = command_text(settings);
  comparison["date"] = date_text();
  comparison["link"] = passed_value(settings.passed, "--link");
  comparison["runs"] = run_all(settings, plans);
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

const std::vector<Column> columns = {
    {"run", "run", Show::text},
    {"scheme", "scheme", Show::text},
    {"accuracy", "accuracy", Show::number},
    {"perplexity", "perplexity", Show::number},
    {"seeds", "seeds", Show::count},
    {"range", "from - to", Show::text},
    {"loss", "loss", Show::number},
    {"bytes_per_step", "bytes/step", Show::bytes},
    {"ratio", "ratio", Show::number},
    {"last_ratio", "ratio at end", Show::number},
    {"seconds_per_step", "time/step", Show::seconds},
    {"speed", "speed", Show::number},
    {"replicas", "replicas", Show::text},
};

void write_page(const std::string& path, const Row& comparison) {
  std::ofstream file(path);
  file << report_html(comparison);
  file.close();
  if (!file) fail("cannot write '", path, "'");
}

void run(const Settings& settings) {
  const Row comparison = settings.from.empty() ? compared(settings) : kept(settings);
  const Rows rows = headline(comparison["runs"]);
  print_table(std::cout, columns, rows);
  if (!settings.json.empty()) write_json(settings.json, comparison, rows);
  write_page(settings.report, comparison);
  std::cout << "\nreport: "
            << std::filesystem::absolute(settings.report).lexically_normal().string() << std::endl;
}

}  // namespace

void add_compare(CLI::App& parent) {
  const auto settings = std::make_shared<Settings>();
  CLI::App* verb =
      add_verb(parent, "compare",
               "Train once per scheme (and seed), then show the runs side by side: a table here, "
               "and a page with\n"
               "loss against steps, bytes and time. All other flags are those of `thinwire train`",
               "thinwire compare --schemes dense,topk,dgc:density=0.001,warmup=100 --data digits "
               "--workers 4 --steps 500 --link 100mbit,1ms",
               settings->json);
  auto* schemes = verb->add_option("--schemes", settings->schemes, "Which, with options")
                      ->type_name("A,B:KEY=VALUE,...");
  auto* preset = verb->add_option("--preset", settings->preset,
                                  "dgc-ablation: dense, then DGC idea by idea; takes options of\n"
                                  "the schemes, as in dgc-ablation:density=0.01,warmup=200")
                     ->type_name("NAME[:KEY=VALUE,...]")
                     ->excludes(schemes);
  verb->add_option("--from", settings->from, "Train nothing; show what --json once wrote")
      ->type_name("FILE")
      ->excludes(schemes)
      ->excludes(preset);
  verb->add_option("--seeds", settings->seeds, "Train with the seeds 1 to N; the table has means")
      ->type_name("N")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  verb->add_option("--report", settings->report, "The page")
      ->type_name("FILE")
      ->check(check_output_path)
      ->capture_default_str();
  // For tests: in no group, so not in --help.
  verb->add_option("--trainer", settings->trainer, "PROGRAM")->group("");
  verb->allow_extras();
  verb->callback([settings, verb] {
    settings->passed = verb->remaining();
    run(*settings);
  });
}

}  // namespace thinwire::apps
