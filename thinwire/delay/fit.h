// fit.h: which schemes can carry updates that arrive late, and how many messages at once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "thinwire/compress/compressor.h"
#include "thinwire/core/options.h"
#include "thinwire/delay/options.h"

namespace thinwire {

// Throws an Error that says why the scheme and delayed averaging do not go together; with `moments`
// those of an Adam travel alongside.
void check_scheme(const DelayOptions& options, const Config& config, bool moments);

// Throws an Error where a bucket's compressor takes steps in turn, and more than one message (`depth`)
// is to be under way, or a worker's own share to be read out of it (`own`: book b).
void check_turns(const Config& config, const Compressor& compressor, std::uint64_t depth, bool own);

// Both, before there is a model: the second is tried on a large matrix. What depends on the model's
// own shapes is left to the first message.
void check_fit(const DelayOptions& options, const Config& config, bool moments);

}  // namespace thinwire
