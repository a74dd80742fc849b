// setup.h: what an Exchange and a StreamExchange do alike: compressors from configurations, checks
// of the buckets, the step in a saved state, and the places that errors name. Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "thinwire/compress/compressor.h"
#include "thinwire/core/options.h"
#include "thinwire/core/state.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/kind.h"

namespace thinwire {

using Compressors = std::vector<std::unique_ptr<Compressor>>;
using SharedCompressors = std::vector<std::shared_ptr<Compressor>>;
SharedCompressors shared(Compressors compressors);

// The configurations as one text. Equal neighbours are written once, with their number.
std::string join(const std::vector<Config>& configs);

// One compressor per bucket. Throws when the scheme and the kind of exchange do not fit each other.
Compressors make_compressors(const Site& site, const std::vector<Bucket>& buckets,
                             const std::vector<Config>& configs, const ExchangeKind& kind);
// The same under the contract of a device (compress/compressor.h). On the CPU compressors of the
// CPU stand in (as_device.h).
Compressors make_stream_compressors(const Site& site, const std::vector<Bucket>& buckets,
                                    const Config& config, const ExchangeKind& kind);

// Throws unless buckets are sound, numbered from 0 without gaps, and have a compressor each.
void check_buckets(const std::vector<Bucket>& buckets, std::size_t compressors);

// "rank 1, step 20, bucket 3"
std::string place_of(int rank, std::uint64_t step, std::size_t bucket);

// Shows a visitor the number of steps. Throws when it leaves one that cannot be.
void visit_step(StateVisitor& visitor, std::uint64_t& step);

}  // namespace thinwire
