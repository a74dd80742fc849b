// options.h: the options of delayed averaging: how long a message may be in flight, how many local
// steps it covers, and how a worker applies the other workers' updates when they arrive.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/core/options.h"

namespace thinwire {

enum class Correction : std::uint8_t {
  soft,       // the ledger, applied gradually; a worker applies a measured share of its own updates
              // at once
  ledger,     // the mean replaces own updates when it arrives: w = anchor + own updates in flight
  published,  // exactly as Zhu et al. 2021: the optimizer gets g - g(then) + mean(then)
  pull,       // moves by a share of (anchor - weights) of the time when the round was closed
  none,       // own updates wait for the mean too: plain delayed averaging
};

struct DelayOptions {
  std::uint64_t delay = 0;        // D: steps a message may be in flight; with `measure` the maximum
  bool measure = false;           // measures in the first rounds which D the link needs
  std::uint64_t local_steps = 1;  // K: steps per message
  Correction correction = Correction::soft;
  // soft, ledger: the share of its own update that a worker applies before the mean arrives. 0: 1
  // for the ledger, measured for soft.
  double share = 0;
  // ledger, pull: the longest correction, in lengths of the mean update. The rest is applied with
  // the next correction. 0: no limit.
  double clip = 0;
  // soft, ledger: the share of a due correction that is applied per step. 1: all at once. 0:
  // effective_pace() chooses.
  double pace = 0;
  double momentum = 0.9;  // momentum of the optimizer, on which a chosen pace depends
  double rate = 0;        // pull: share of the way per round; 0: pull_rate() chooses
  // soft, ledger, with a compressor: on arrival the mean replaces only what was sent. What the
  // compressor held back stays in this worker's model.
  bool book_b = false;
  // Steps between comparisons of the anchors, which are sent with messages. 0: never.
  std::uint64_t check_every = 100;

  // Parses "soft", "pull:rate=0.02", "ledger:book=b,clip=1". Throws an Error that lists the
  // choices.
  void parse_correction(std::string_view text);
  // The same form back, defaults left out.
  std::string correction_str() const;
  // Parses "20" or "auto:20". Throws an Error that lists the forms.
  void parse_delay(std::string_view text);
  std::string delay_str() const;
  // Throws an Error that names the settings that conflict.
  void check() const;

  // The largest number of messages in flight.
  std::uint64_t rounds_in_flight() const;
  double pull_rate() const;
  // `pace`, or where it is 0 the default: 1 for the ledger, and for soft
  // min(2 / (D + K - 1), (1 - momentum) / 2). This is slow enough that corrections which local
  // gradients have already made are not made twice (docs/notebook/delay.md).
  double effective_pace() const;
  // Whether each worker measures the share of its own update to apply at once. The share is between
  // one half and 1; one half is the smallest that outweighs the late part for every curvature
  // (docs/notebook/delay.md). It is 1 without delay, and with book b, which keeps what was not sent
  // in the worker's model.
  bool measures_share() const;
  // How much of earlier rounds' products a measured share keeps: the last 50 steps or so count.
  double share_memory() const;
  // The share; where it is measured, that of the first round.
  double effective_share() const;

  // The forms that parse_correction() understands, for help texts.
  static const std::vector<Option>& known();
};

}  // namespace thinwire
