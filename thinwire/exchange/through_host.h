// through_host.h: a compressor of the CPU for gradients on a device. Gradients, messages and
// averages pass through pinned memory, and the host waits for the device in every call: for schemes
// without kernels, and far slower than those that have them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "thinwire/compress/compressor.h"

namespace thinwire {

// `compressor` is of the CPU, for this bucket.
std::unique_ptr<Compressor> through_host(std::unique_ptr<Compressor> compressor,
                                         const Bucket& bucket, Device device);

}  // namespace thinwire
