// options.h: how a delayed average is set: how long a message may be under way, how many local
// steps it sums up, and how a worker takes the others' progress in when it arrives.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/core/options.h"

namespace thinwire {

enum class Correction : std::uint8_t {
  soft,       // the ledger little by little, of which a worker makes a measured share of its own
              // updates at once
  ledger,     // own updates leave when the mean of their round arrives: w = anchor + own in flight
  published,  // Zhu et al. 2021, to the letter: the optimizer gets g - g(then) + mean(then)
  pull,       // a share of the way from where this worker was then to where the mean was then
  none,       // own updates wait for the mean like everybody's: plain delayed averaging
};

struct DelayOptions {
  std::uint64_t delay = 0;        // D: steps a message may be under way; with `measure`: at most
  bool measure = false;           // D is what the link needs, found after the first rounds
  std::uint64_t local_steps = 1;  // K: steps per message
  Correction correction = Correction::soft;
  double share = 0;  // soft, ledger: of its own update that a worker makes before the mean arrives;
                     // 0: 1 for the ledger, measured for soft
  double clip = 0;  // ledger, pull: longest correction, in lengths of the mean update; 0: any. What
                    // is cut off follows with the next.
  double pace = 0;  // soft, ledger: share of what is due that is made per step, 1: all at once; 0:
                    // effective_pace() chooses
  double momentum = 0.9;  // of the optimizer: what a chosen pace depends on
  double rate = 0;        // pull: share of the way per round; 0: pull_rate() chooses
  bool book_b = false;    // soft, ledger, with a compressor: only what was sent leaves on arrival,
                          // what it kept back stays in this worker's model
  std::uint64_t check_every = 100;  // steps between comparisons of the anchors, which travel beside
                                    // messages; 0: never

  // "soft", "pull:rate=0.02", "ledger:book=b,clip=1". Throws an Error with the choices.
  void parse_correction(std::string_view text);
  // The same form back, defaults left out.
  std::string correction_str() const;
  // "20", "auto:20"; throws an Error with the forms.
  void parse_delay(std::string_view text);
  std::string delay_str() const;
  // Throws an Error that says which settings clash.
  void check() const;

  // Messages under way at once.
  std::uint64_t rounds_in_flight() const;
  double pull_rate() const;
  // Where the pace is to be chosen, all at once for the ledger; for soft
  // min(2 / (D + K - 1), (1 - momentum) / 2): slow enough that what local gradients have undone
  // meanwhile is not undone twice (docs/delay.md).
  double effective_pace() const;
  // Whether each worker measures which share of its own update it should make at once: between one
  // half, the smallest for which what comes at once outweighs what comes late, whatever the
  // curvature, and all of it (docs/delay.md). Without delay it is all; with book b too, which leaves
  // in the worker's model whatever was not sent.
  bool measures_share() const;
  // The share, of the first round where it is measured.
  double effective_share() const;

  // What parse_correction() understands, for help texts.
  static const std::vector<Option>& known();
};

}  // namespace thinwire
