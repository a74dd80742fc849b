// target.h: the quality that the runs of a comparison reach, what each needs to reach it,
// and who wins.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/curve.h"
#include "apps/run_clock.h"

namespace thinwire::apps {

// The accuracy that all runs reach with every seed, rounded to a tenth of a percent. For language
// models it is a perplexity, for speech a word error rate, and without evaluations a training loss.
// A run that ends worse than the baseline does not count: by more than a point of accuracy or word
// error rate, 3 % of perplexity, or 0.03 of loss.
struct Target {
  std::string key;  // "accuracy", "perplexity", "word_error" or "loss"
  double value = 0;
  RunClock clock = RunClock::measured;
  bool at_end = false;  // one evaluation per run, so times are those of whole trainings

  std::string brief() const;  // "97.0 %"
  std::string str() const;    // "97.0 % accuracy"
};

// Empty if the baseline has no values, or no time although it was measured.
std::optional<Target> target_of(const Row& runs);

// A value of `key` as people write it: "97.25 %", "12.34".
std::string quality_text(const std::string& key, double value);

// What a run needed until its first evaluation at or beyond the target. Time includes waiting for
// messages but not the evaluations. Bytes are those of one worker.
struct Reach {
  Spread steps, bytes;
  std::optional<Spread> seconds;  // unless the clock is RunClock::none
};

// Empty if one of the seeds never reached it.
std::optional<Reach> reach_of(const Row& run, const Target& target);

// The text for a run without a Reach: "never reaches it: its best is 73.60 %".
std::string shortfall(const Row& run, const Target& target);

// Sentences without markup: which run reaches the target first, which with the fewest bytes (both
// with time and bytes), and which never reach it. Times within 5 % count as equal; then the fewest
// bytes win. Without times bytes alone decide. Empty unless there are two runs to compare.
std::vector<std::string> verdict(const Row& runs);

// A note on how the times were measured.
std::string target_note(const Target& target);

}  // namespace thinwire::apps
