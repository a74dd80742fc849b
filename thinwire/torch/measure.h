// measure.h: measures one scheme on given gradients, without other workers: bytes, error, encoding
// and decoding time. thinwire.inspect() turns these into times on a link.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "thinwire/core/options.h"
#include "thinwire/torch/layout.h"

namespace thinwire::ddp {

struct Measured {
  double payload_bytes =
      0;                   // of one worker in one step: the mean over the second half of the steps
  double kept = 0;         // energy of the first gradient that its message carries, 0 to 1
  double collectives = 1;  // one after the other, in one bucket
  double encode_seconds = 0, decode_seconds = 0;  // of one step; decoding of one worker's payload
  bool reducible = false;                         // payloads are summed on their way
  bool loses = false;                             // what is not sent is lost for good
};

// `gradients`: by step, then by parameter in the order of the cut. They are not changed.
Measured measure(const Config& config, const Cut& cut,
                 const std::vector<std::vector<at::Tensor>>& gradients);

}  // namespace thinwire::ddp
