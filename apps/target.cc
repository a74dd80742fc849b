// target.cc: derives the target from values, time and bytes to it from rows, and
// sentences from those.
// SPDX-License-Identifier: Apache-2.0
#include "apps/target.h"

#include <algorithm>
#include <cmath>

#include "apps/report_parts.h"
#include "apps/report_table.h"

namespace thinwire::apps {
namespace {

constexpr double equal_accuracy = 0.01, equal_perplexity = 1.03, equal_loss = 0.03;
constexpr double equal_time = 1.05;

bool rises(const std::string& key) { return key == "accuracy"; }

bool is_share(const std::string& key) { return rises(key) || key == "word_error"; }

bool better(const std::string& key, double a, double b) { return rises(key) ? a > b : a < b; }

// The target is rounded, so its last bits must not decide.
bool reaches(const Target& target, double value) {
  const double slack = 1e-6 * std::abs(target.value);
  return rises(target.key) ? value >= target.value - slack : value <= target.value + slack;
}

bool as_good(const std::string& key, double value, double basis) {
  if (key == "accuracy") return value >= basis - equal_accuracy;
  if (key == "word_error") return value <= basis + equal_accuracy;
  return value <= (key == "perplexity" ? basis * equal_perplexity : basis + equal_loss);
}

bool usable(const Sample& sample, RunClock clock) {
  return std::isfinite(sample.value.mean) && sample.bytes > 0 &&
         (sample.seconds > 0 || clock == RunClock::none);
}

// The curve of a run that has only a final value.
Curve end_of(const Row& run, const std::string& key) {
  const Row final = part(run, "final");
  const Number steps = number(final, "steps"), value = number(final, key.c_str()),
               bytes = number(final, "bytes_per_step");
  if (!steps || !value || !bytes) return {};
  const double seconds = step_seconds(final).value_or(0);
  return {{*steps, *steps * *bytes, *steps * seconds, Spread::of({*value})}};
}

// The evaluations of each seed. Empty unless every seed has one.
std::vector<Curve> evaluations(const Row& run, const std::string& key, RunClock clock) {
  const auto useless = [&](const Sample& sample) { return !usable(sample, clock); };
  std::vector<Curve> curves = seed_curves(run, key);
  bool none = true;
  for (Curve& curve : curves) {
    std::erase_if(curve, useless);
    none = none && curve.empty();
  }
  if (none) {
    curves = {end_of(run, key)};
    std::erase_if(curves[0], useless);
  }
  const bool lacking =
      std::any_of(curves.begin(), curves.end(), [](const Curve& curve) { return curve.empty(); });
  return lacking ? std::vector<Curve>() : curves;
}

double best_value(const std::string& key, const Curve& curve) {
  const auto best = std::min_element(
      curve.begin(), curve.end(),
      [&](const Sample& a, const Sample& b) { return better(key, a.value.mean, b.value.mean); });
  return best->value.mean;
}

double end_value(const std::vector<Curve>& curves) {
  double sum = 0;
  for (const Curve& curve : curves) sum += curve.back().value.mean;
  return sum / static_cast<double>(curves.size());
}

// Rounds to a tenth of a percent, or to three digits, towards the side that all runs still reach.
double tidy(const std::string& key, double value) {
  if (rises(key)) return std::floor(value * 1000 + 1e-6) / 1000;
  if (is_share(key)) return std::ceil(value * 1000 - 1e-6) / 1000 + 0.0;  // never -0
  if (value <= 0) return value;
  const double unit = std::pow(10, std::floor(std::log10(value)) - 2);
  return std::ceil(value / unit - 1e-6) * unit;
}

std::string measure_of(const Row& basis, RunClock clock) {
  for (const char* key : {"perplexity", "word_error", "accuracy", "loss"}) {
    if (!evaluations(basis, key, clock).empty()) return key;
  }
  return "";
}

// Words for a gain, a loss, and neither.
struct Comparative {
  const char *less, *more, *same;
};

std::string compared_text(double basis, double own, const Comparative& words) {
  const double factor = basis / own;
  if (factor > 0.995 && factor < 1.005) return words.same;
  return factor_digits(factor > 1 ? factor : 1 / factor) + " times " +
         (factor > 1 ? words.less : words.more);
}

std::string range_text(const Spread& spread, std::string (*text)(double)) {
  if (text(spread.low) == text(spread.high)) return "";
  return " (" + text(spread.low) + " to " + text(spread.high) + " by seed)";
}

struct Contender {
  std::size_t index;  // index among the runs
  std::string name;
  Reach reach;
};

std::vector<Contender> contenders_of(const Row& runs, const Target& target) {
  std::vector<Contender> all;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::optional<Reach> reach = reach_of(runs[i], target);
    if (reach) all.push_back({i, label_of(runs[i]), *reach});
  }
  return all;
}

const Contender& leanest(const std::vector<Contender>& all, double within) {
  const Contender* best = nullptr;
  for (const Contender& each : all) {
    if (each.reach.seconds && each.reach.seconds->mean > within) continue;
    if (best == nullptr || each.reach.bytes.mean < best->reach.bytes.mean) best = &each;
  }
  return *best;
}

// "in 17.8 s (17.1 s to 18.2 s by seed)"
std::string duration_of(const Contender& who, RunClock clock) {
  const Spread& seconds = *who.reach.seconds;
  return (clock == RunClock::estimated ? "in an estimated " : "in ") + duration_text(seconds.mean) +
         range_text(seconds, duration_text);
}

std::string bytes_until_then(const Contender& who) {
  return "sends " + bytes_text(who.reach.bytes.mean) + " per worker until then";
}

std::string fewer_bytes(const Contender& who, const Contender& basis) {
  return compared_text(basis.reach.bytes.mean, who.reach.bytes.mean, {"less", "more", "as much"});
}

std::string time_and_bytes(const Contender& who, const Contender& basis, RunClock clock) {
  return duration_of(who, clock) + ", " +
         compared_text(basis.reach.seconds->mean, who.reach.seconds->mean,
                       {"sooner than ", "later than ", "as soon as "}) +
         basis.name + ", and " + bytes_until_then(who) + ", " + fewer_bytes(who, basis);
}

std::string winner_text(const Contender& winner, const Contender& basis, const Target& target) {
  const std::string start = winner.name + " reaches " + target.str() + " first, ";
  if (&winner != &basis) return start + time_and_bytes(winner, basis, target.clock) + ".";
  return start + duration_of(winner, target.clock) + ", and " + bytes_until_then(winner) + ".";
}

using Sentences = std::vector<std::string>;

Sentences verdict_by_bytes(const std::vector<Contender>& all, const Contender& basis,
                           const Target& target) {
  const Contender& thrifty = leanest(all, HUGE_VAL);
  std::string text = thrifty.name + " reaches " + target.str() + " with the fewest bytes: it " +
                     bytes_until_then(thrifty);
  if (&thrifty != &basis) text += ", " + fewer_bytes(thrifty, basis) + " than " + basis.name;
  return {text + "."};
}

Sentences verdict_by_time(const std::vector<Contender>& all, const Contender& basis,
                          const Target& target) {
  const auto fastest = std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.reach.seconds->mean < b.reach.seconds->mean;
  });
  const Contender& winner = leanest(all, equal_time * fastest->reach.seconds->mean);
  const Contender& thrifty = leanest(all, HUGE_VAL);
  Sentences sentences = {winner_text(winner, basis, target)};
  if (&winner != &*fastest) {
    sentences.push_back(fastest->name + " takes " + duration_text(fastest->reach.seconds->mean) +
                        ", equal within 5 %: fewer bytes decide.");
  }
  if (&thrifty == &winner) {
    sentences.push_back("No other run needs fewer bytes.");
  } else {
    sentences.push_back(thrifty.name + " needs the fewest bytes: it gets there " +
                        time_and_bytes(thrifty, basis, target.clock) + ".");
  }
  return sentences;
}

}  // namespace

std::string quality_text(const std::string& key, double value) {
  return is_share(key) ? printed("%.2f", 100 * value) + " %" : printed("%.4g", value);
}

std::string Target::brief() const {
  return is_share(key) ? printed("%.1f", 100 * value) + " %" : printed("%.3g", value);
}

std::string Target::str() const {
  if (rises(key)) return brief() + " accuracy";
  const std::string name = key == "loss"         ? "training loss"
                           : key == "word_error" ? "word error rate"
                                                 : "perplexity";
  return "a " + name + " of " + brief();
}

std::optional<Target> target_of(const Row& runs) {
  if (!runs.is_array() || runs.empty()) return {};
  const Row& basis = runs[basis_of(runs)];
  const RunClock clock = clock_of(runs);
  Target target{measure_of(basis, clock), 0, clock, true};
  if (target.key.empty()) return {};
  const double end = end_value(evaluations(basis, target.key, clock));
  bool first = true;
  for (const Row& run : runs) {
    const std::vector<Curve> curves = evaluations(run, target.key, target.clock);
    if (curves.empty() || !as_good(target.key, end_value(curves), end)) continue;
    for (const Curve& curve : curves) {
      const double best = best_value(target.key, curve);
      if (first || better(target.key, target.value, best)) target.value = best;
      first = false;
      target.at_end = target.at_end && curve.size() == 1;
    }
  }
  target.value = tidy(target.key, target.value);
  return target;
}

std::optional<Reach> reach_of(const Row& run, const Target& target) {
  std::vector<double> steps, seconds, bytes;
  const std::vector<Curve> curves = evaluations(run, target.key, target.clock);
  for (const Curve& curve : curves) {
    const auto found = std::find_if(curve.begin(), curve.end(), [&](const Sample& sample) {
      return reaches(target, sample.value.mean);
    });
    if (found == curve.end()) return {};
    steps.push_back(found->step);
    seconds.push_back(found->seconds);
    bytes.push_back(found->bytes);
  }
  if (curves.empty()) return {};
  Reach reach{Spread::of(steps), Spread::of(bytes), {}};
  if (target.clock != RunClock::none) reach.seconds = Spread::of(seconds);
  return reach;
}

std::string shortfall(const Row& run, const Target& target) {
  const std::vector<Curve> curves = evaluations(run, target.key, target.clock);
  if (curves.empty()) return "was not evaluated";
  std::size_t there = 0;
  double best = 0;
  for (const Curve& curve : curves) {
    const double value = best_value(target.key, curve);
    best += value / static_cast<double>(curves.size());
    if (reaches(target, value)) ++there;
  }
  if (there > 0) {
    return "reaches it with " + std::to_string(there) + " of " + std::to_string(curves.size()) +
           " seeds only";
  }
  return "never reaches it: its best is " + quality_text(target.key, best);
}

std::vector<std::string> verdict(const Row& runs) {
  const std::optional<Target> target = target_of(runs);
  if (!target || runs.size() < 2) return {};
  const std::vector<Contender> all = contenders_of(runs, *target);
  const auto basis = std::find_if(
      all.begin(), all.end(), [&](const Contender& each) { return each.index == basis_of(runs); });
  if (basis == all.end()) return {};

  Sentences sentences = target->clock == RunClock::none ? verdict_by_bytes(all, *basis, *target)
                                                        : verdict_by_time(all, *basis, *target);
  for (const Row& run : runs) {
    if (!reach_of(run, *target))
      sentences.push_back(label_of(run) + " " + shortfall(run, *target) + ".");
  }
  return sentences;
}

std::string target_note(const Target& target) {
  const bool timed = target.clock != RunClock::none;
  const std::string
      kind = !timed ? "Virtual workers without a --link have no time, so bytes decide. "
             : target.clock == RunClock::estimated
                 ? "Times are estimated for the --link: virtual workers wait for nothing. "
                 : "",
      what = timed ? "times and bytes" : "bytes";
  if (target.at_end) {
    return kind + "The runs were evaluated at the end only, so these are the " + what +
           " of the whole training; --eval-every N gives those until " + target.str() + ".";
  }
  const std::string counted = timed ? "Time and bytes count" : "Bytes count";
  return kind +
         (target.key == "loss" ? "Nothing was evaluated, so the training loss counts. " : "") +
         counted + " until the first " + (target.key == "loss" ? "row" : "evaluation") +
         " at the target." +
         (timed ? " Time includes waiting for messages, but not the evaluations." : "");
}

}  // namespace thinwire::apps
