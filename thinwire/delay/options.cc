// options.cc: parses and checks the settings of a delayed average.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/delay/options.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>

#include "thinwire/core/error.h"

namespace thinwire {
namespace {

constexpr std::array<std::string_view, 5> names = {"soft", "ledger", "published", "pull", "none"};

std::string digits_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.12g", value);
  return text;
}

}  // namespace

const std::vector<Option>& DelayOptions::known() {
  static const std::vector<Option> options = {
      {"share", "0",
       "soft, ledger: share of its own update that a worker applies before the mean arrives, in "
       "[0, 1]. 0: measured for soft (0.5 to 1), 1 for ledger and book b."},
      {"clip", "0",
       "ledger, pull: longest correction, in lengths of the mean update. 0: no limit."},
      {"pace", "0",
       "soft, ledger: share of a correction that is applied per step, in [0, 1]. 0: chosen for "
       "soft, 1 for ledger."},
      {"rate", "0",
       "pull: share of the way per round, in [0, 1]. 0: 0.4 K / max(D, K), or 1 without delay."},
      {"book", "a",
       "soft, ledger, with a compressor: on arrival the mean replaces the whole update (a) or only "
       "what was sent (b)."}};
  return options;
}

void DelayOptions::parse_correction(std::string_view text) {
  const Config config = Config::parse(text);
  const auto found = std::find(names.begin(), names.end(), config.scheme);
  if (found == names.end())
    fail("correction: expected soft, ledger, published, pull or none, got '", config.scheme, "'");
  correction = static_cast<Correction>(found - names.begin());
  const Options options(config, known());
  const auto from_zero = [&](const char* name, double up_to) {
    const double value = options.number(name, -1, up_to);
    if (value < 0) fail("correction ", text, ": ", name, " must not be negative");
    return value;
  };
  share = from_zero("share", 1);
  clip = from_zero("clip", 1e6);
  pace = from_zero("pace", 1);
  rate = from_zero("rate", 1);
  constexpr std::array<std::string_view, 2> books = {"a", "b"};
  book_b = options.choice("book", books) == 1;
}

std::string DelayOptions::correction_str() const {
  Config config{std::string(names[static_cast<std::size_t>(correction)]), {}};
  if (pace != 0) config.options["pace"] = digits_of(pace);
  if (share != 0) config.options["share"] = digits_of(share);
  if (clip != 0) config.options["clip"] = digits_of(clip);
  if (rate != 0) config.options["rate"] = digits_of(rate);
  if (book_b) config.options["book"] = "b";
  return config.str();
}

void DelayOptions::parse_delay(std::string_view text) {
  constexpr std::string_view word = "auto:";
  measure = text.starts_with(word);
  const std::string_view digits = measure ? text.substr(word.size()) : text;
  const char* const end = digits.data() + digits.size();
  const auto [rest, error] = std::from_chars(digits.data(), end, delay);
  if (error != std::errc{} || rest != end || delay > 100'000 || (measure && delay == 0))
    fail("delay: expected a number of steps up to 100000, or auto:MOST, got '", text, "'");
}

std::string DelayOptions::delay_str() const {
  return (measure ? "auto:" : "") + std::to_string(delay);
}

void DelayOptions::check() const {
  if (local_steps == 0) fail("local steps: expected at least 1, got 0");
  const std::string name(names[static_cast<std::size_t>(correction)]);
  const bool ledger = correction == Correction::ledger, pull = correction == Correction::pull;
  const bool books = ledger || correction == Correction::soft;
  if (share != 0 && !books) fail("correction ", name, " has no share=; soft and ledger have");
  if (share != 0 && book_b)
    fail("correction ", name, ": share= and book=b clash; give one of them");
  if (pace != 0 && !books) fail("correction ", name, " has no pace=; soft and ledger have");
  if (pace != 0 && pace != 1 && clip != 0)
    fail("correction ", name, ": pace= and clip= clash; give one of them");
  if (clip != 0 && !ledger && !pull)
    fail("correction ", name, " has no clip=; ledger and pull have");
  if (rate != 0 && !pull) fail("correction ", name, " has no rate=; only pull has");
  if (book_b && !books) fail("correction ", name, " has no book=b; soft and ledger have");
}

std::uint64_t DelayOptions::rounds_in_flight() const {
  return std::max<std::uint64_t>(1, (delay + local_steps - 1) / local_steps);
}

double DelayOptions::pull_rate() const {
  if (rate > 0) return rate;
  if (delay == 0) return 1;  // nothing has happened since then: go all the way
  const auto steps = static_cast<double>(local_steps);
  return 0.4 * steps / std::max(static_cast<double>(delay), steps);
}

double DelayOptions::effective_pace() const {
  if (pace > 0) return pace;
  if (delay == 0 || correction != Correction::soft) return 1;
  const auto reach = static_cast<double>(delay + local_steps - 1);
  return std::min({1.0, 2 / reach, (1 - momentum) / 2});
}

bool DelayOptions::measures_share() const {
  return delay > 0 && share == 0 && correction == Correction::soft && !book_b;
}

double DelayOptions::share_memory() const {
  return 1 - std::min(0.5, static_cast<double>(local_steps) / 50);
}

double DelayOptions::effective_share() const {
  return delay > 0 && share > 0 ? share : 1;  // without delay nothing is in flight
}

}  // namespace thinwire
