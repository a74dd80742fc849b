// as_device.h: a compressor of the CPU under the contract of a device (compress/compressor.h): it
// leaves its lengths and verdicts in memory and ends a step by conclude(). So a StreamExchange runs
// on the CPU too, with the same bits as an Exchange: for tests, and where no GPU is.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "thinwire/compress/compressor.h"
#include "thinwire/core/options.h"

namespace thinwire {

// `bucket` is the number that a fault names.
std::unique_ptr<Compressor> as_device(std::unique_ptr<Compressor> compressor, std::uint16_t bucket);

// The compressor of a bucket under the contract of a device: of site.device, or a stand-in; for a
// scheme that works on the host, one that gradients on a device reach through pinned memory.
std::unique_ptr<Compressor> make_on_device(const Config& config, const Bucket& bucket,
                                           const Site& site);

}  // namespace thinwire
