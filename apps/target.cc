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

bool better(const std::string& key, double a, double b) { return rises(key) ? a > b : a < b; }

// The target is rounded, so its last bits must not decide.
bool reaches(const Target& target, double value) {
  const double slack = 1e-6 * std::abs(target.value);
  return rises(target.key) ? value >= target.value - slack : value <= target.value + slack;
}

bool as_good(const std::string& key, double value, double basis) {
  if (key == "accuracy") return value >= basis - equal_accuracy;
  return value <= (key == "perplexity" ? basis * equal_perplexity : basis + equal_loss);
}

bool usable(const Sample& sample) {
  return std::isfinite(sample.value.mean) && sample.seconds > 0 && sample.bytes > 0;
}

// The curve of a run that has only a final value.
Curve end_of(const Row& run, const std::string& key) {
  const Row final = part(run, "final");
  const Number steps = number(final, "steps"), value = number(final, key.c_str()),
               seconds = number(final, "seconds_per_step"), bytes = number(final, "bytes_per_step");
  if (!steps || !value || !seconds || !bytes) return {};
  return {{*steps, *steps * *bytes, *steps * *seconds, Spread::of({*value})}};
}

// The evaluations of each seed. Empty unless every seed has one.
std::vector<Curve> evaluations(const Row& run, const std::string& key) {
  std::vector<Curve> curves = seed_curves(run, key);
  bool none = true;
  for (Curve& curve : curves) {
    std::erase_if(curve, [](const Sample& sample) { return !usable(sample); });
    none = none && curve.empty();
  }
  if (none) {
    curves = {end_of(run, key)};
    std::erase_if(curves[0], [](const Sample& sample) { return !usable(sample); });
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
  if (value <= 0) return value;
  const double unit = std::pow(10, std::floor(std::log10(value)) - 2);
  return std::ceil(value / unit - 1e-6) * unit;
}

std::string measure_of(const Row& basis) {
  for (const char* key : {"perplexity", "accuracy", "loss"}) {
    if (!evaluations(basis, key).empty()) return key;
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
    if (each.reach.seconds.mean > within) continue;
    if (best == nullptr || each.reach.bytes.mean < best->reach.bytes.mean) best = &each;
  }
  return *best;
}

std::string time_and_bytes(const Contender& who, const Contender& basis) {
  const Spread &seconds = who.reach.seconds, &bytes = who.reach.bytes;
  return "in " + duration_text(seconds.mean) + range_text(seconds, duration_text) + ", " +
         compared_text(basis.reach.seconds.mean, seconds.mean,
                       {"sooner than ", "later than ", "as soon as "}) +
         basis.name + ", and sends " + bytes_text(bytes.mean) + " per worker until then, " +
         compared_text(basis.reach.bytes.mean, bytes.mean, {"less", "more", "as much"});
}

std::string winner_text(const Contender& winner, const Contender& basis, const Target& target) {
  const std::string start = winner.name + " reaches " + target.str() + " first, ";
  if (&winner != &basis) return start + time_and_bytes(winner, basis) + ".";
  return start + "in " + duration_text(winner.reach.seconds.mean) +
         range_text(winner.reach.seconds, duration_text) + ", and sends " +
         bytes_text(winner.reach.bytes.mean) + " per worker until then.";
}

}  // namespace

std::string quality_text(const std::string& key, double value) {
  return rises(key) ? printed("%.2f", 100 * value) + " %" : printed("%.4g", value);
}

std::string Target::brief() const {
  return rises(key) ? printed("%.1f", 100 * value) + " %" : printed("%.3g", value);
}

std::string Target::str() const {
  return rises(key) ? brief() + " accuracy"
                    : (key == "loss" ? "a training loss of " : "a perplexity of ") + brief();
}

std::optional<Target> target_of(const Row& runs) {
  if (!runs.is_array() || runs.empty()) return {};
  const Row& basis = runs[basis_of(runs)];
  Target target{measure_of(basis), 0, true};
  if (target.key.empty()) return {};
  const double end = end_value(evaluations(basis, target.key));
  bool first = true;
  for (const Row& run : runs) {
    const std::vector<Curve> curves = evaluations(run, target.key);
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
  const std::vector<Curve> curves = evaluations(run, target.key);
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
  return Reach{Spread::of(steps), Spread::of(seconds), Spread::of(bytes)};
}

std::string shortfall(const Row& run, const Target& target) {
  const std::vector<Curve> curves = evaluations(run, target.key);
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

  const auto fastest = std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return a.reach.seconds.mean < b.reach.seconds.mean;
  });
  const Contender& winner = leanest(all, equal_time * fastest->reach.seconds.mean);
  const Contender& thrifty = leanest(all, HUGE_VAL);
  std::vector<std::string> sentences = {winner_text(winner, *basis, *target)};
  if (&winner != &*fastest) {
    sentences.push_back(fastest->name + " takes " + duration_text(fastest->reach.seconds.mean) +
                        ", equal within 5 %: fewer bytes decide.");
  }
  if (&thrifty == &winner) {
    sentences.push_back("No other run needs fewer bytes.");
  } else {
    sentences.push_back(thrifty.name + " needs the fewest bytes: it gets there " +
                        time_and_bytes(thrifty, *basis) + ".");
  }
  for (const Row& run : runs) {
    if (!reach_of(run, *target))
      sentences.push_back(label_of(run) + " " + shortfall(run, *target) + ".");
  }
  return sentences;
}

std::string target_note(const Target& target) {
  if (target.at_end) {
    return "The runs were evaluated at the end only, so these are the times and bytes of the whole "
           "training; --eval-every N gives those until " +
           target.str() + ".";
  }
  return std::string(target.key == "loss" ? "Nothing was evaluated, so the training loss counts. "
                                          : "") +
         "Time and bytes count until the first " + (target.key == "loss" ? "row" : "evaluation") +
         " at the target. Time includes waiting for messages, but not the evaluations.";
}

}  // namespace thinwire::apps
