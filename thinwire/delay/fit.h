// fit.h: checks that a scheme works with delayed averaging, and with how many messages in flight.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "thinwire/compress/compressor.h"
#include "thinwire/core/options.h"
#include "thinwire/delay/options.h"

namespace thinwire {

// Throws an Error that explains why the scheme does not work with these options. With `moments`,
// Adam's second moments are averaged as well.
void check_scheme(const DelayOptions& options, const Config& config, bool moments);

// Throws an Error when a bucket's compressor must decode a step before it encodes the next, but
// more than one message (`depth`) may be in flight, or a worker must decode its own part (`own`:
// book b).
void check_turns(const Config& config, const Compressor& compressor, std::uint64_t depth, bool own);

// Both checks, before there is a model. The second one tries a large matrix; checks that depend on
// the shapes of the model happen with the first message.
void check_fit(const DelayOptions& options, const Config& config, bool moments);

}  // namespace thinwire
