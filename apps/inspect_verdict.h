// inspect_verdict.h: recommends a scheme for a link, from the measurements of
// `thinwire inspect --model`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "thinwire/comm/link.h"

namespace thinwire::apps {

// The measurements of one scheme, per step.
struct Candidate {
  std::string scheme;
  double bytes = 0;        // one worker's payload
  double kept = 0;         // share of the gradient's energy that one message carries, 0 to 1
  bool reducible = true;   // sent by all-reduce; otherwise each worker's payload goes to all
  bool loses = false;      // elements that are not sent are lost: biased, without feedback
  double collectives = 1;  // in sequence, in one bucket
  double encode_seconds = 0, decode_seconds = 0;  // decode_seconds is for one payload
};

// The time of one exchange without overlap: encoding, the payload over the link (as the emulated
// link charges it), and decoding.
double exchange_seconds(const Candidate& candidate, const Link& link, int workers);

// The time to deliver a whole gradient's energy, when every exchange carries only the part that is
// kept. This makes schemes that send little comparable with schemes that send much.
double gradient_seconds(const Candidate& candidate, const Link& link, int workers);

struct Verdict {
  std::string take;  // the recommended scheme
  std::string text;  // which one, and why
};

// `elements` is the size of the gradient. The time of dense follows from it, measured or not.
Verdict judge(const std::vector<Candidate>& candidates, double elements, const Link& link,
              int workers);

}  // namespace thinwire::apps
