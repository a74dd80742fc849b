// inspect_verdict.h: which scheme to take on a link, from what `thinwire inspect --model` measured.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "thinwire/comm/link.h"

namespace thinwire::apps {

// One scheme as it was measured, per step.
struct Candidate {
  std::string scheme;
  double bytes = 0;        // of one worker's payload
  double kept = 0;         // part of the gradient's energy that one message carries, 0 to 1
  bool reducible = true;   // travels by all-reduce, else each worker's payload goes to all
  bool loses = false;      // what is not sent is lost: biased, and without feedback
  double collectives = 1;  // one after the other, in one bucket
  double encode_seconds = 0, decode_seconds = 0;  // decoding of one payload
};

// One exchange without overlap: the payload over the link, as the emulated link prices it, encoding
// and decoding.
double exchange_seconds(const Candidate& candidate, const Link& link, int workers);

// How long a whole gradient's energy takes, when every exchange carries the part that is kept. This
// makes schemes comparable that send little and schemes that send much.
double gradient_seconds(const Candidate& candidate, const Link& link, int workers);

struct Verdict {
  std::string take;  // a scheme
  std::string text;  // which one, and why
};

// `elements`: of the gradient, from which the time of dense follows, measured or not.
Verdict judge(const std::vector<Candidate>& candidates, double elements, const Link& link,
              int workers);

}  // namespace thinwire::apps
