// target.h: the quality that the runs of a comparison reach, what each needs for it, and who wins.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/curve.h"

namespace thinwire::apps {

// The accuracy that all runs reach with every seed, rounded to a tenth of a percent. For language
// models it is a perplexity, and where nothing was evaluated a training loss. A run that ends worse
// than the basis does not count: by more than a point of accuracy, 3 % of perplexity, or 0.03 of
// loss.
struct Target {
  std::string key;  // "accuracy", "perplexity" or "loss"
  double value = 0;
  bool at_end = false;  // there is one evaluation per run, so times are those of whole trainings

  std::string brief() const;  // "97.0 %"
  std::string str() const;    // "97.0 % accuracy"
};

// Empty when the basis has no values, or no time.
std::optional<Target> target_of(const Row& runs);

// A value of `key` as people write it: "97.25 %", "12.34".
std::string quality_text(const std::string& key, double value);

// What a run needed until its first evaluation at or beyond the target. Time is spent in training,
// with all waiting for messages but without the evaluations; bytes are those of one worker.
struct Reach {
  Spread steps, seconds, bytes;
};

// Empty where one of the seeds never got there.
std::optional<Reach> reach_of(const Row& run, const Target& target);

// What to say of a run without a Reach: "never reaches it: its best is 73.60 %".
std::string shortfall(const Row& run, const Target& target);

// Sentences without markup: who reaches the target first, who with the fewest bytes, both with time
// and bytes, and who never does. Times within 5 % are equal, and fewer bytes decide. Empty when
// there are not two runs to compare.
std::vector<std::string> verdict(const Row& runs);

// How the times were taken, for a note.
std::string target_note(const Target& target);

}  // namespace thinwire::apps
