// thinwire.h: the whole library. A program that averages gradients needs only this header. Engines
// for processes have their own: thinwire/comm/mpi/mpi.h and thinwire/comm/c10d/c10d.h.
// SPDX-License-Identifier: Apache-2.0
#pragma once

// In order of use, not of the alphabet.
// clang-format off
#include "thinwire/core/error.h"           // the one exception
#include "thinwire/core/view.h"            // buckets, parameters, tensors that a caller owns
#include "thinwire/core/options.h"         // "dgc:density=0.001" as a value
#include "thinwire/core/state.h"           // saves and loads state by name
#include "thinwire/core/parallel.h"        // the number of threads that the kernels use
#include "thinwire/comm/group.h"           // the workers of a job
#include "thinwire/comm/local.h"           // workers as threads of this process
#include "thinwire/comm/link.h"            // workers over an emulated link
#include "thinwire/compress/registry.h"    // the schemes
#include "thinwire/exchange/kind.h"        // how gradients are combined: "split", "server:2"
#include "thinwire/exchange/exchange.h"    // averages the buckets of a model, step by step
#include "thinwire/exchange/virtual_exchange.h"  // all ranks of a job on one thread: simulation
#include "thinwire/exchange/stream_exchange.h"  // the same for gradients in device memory
#include "thinwire/exchange/replicas.h"    // checks that all workers have the same weights
#include "thinwire/delay/delayed.h"        // delayed averaging: training does not wait for the link
#include "thinwire/delay/stream_delayed.h"  // the same for weights in device memory
#include "thinwire/kernels/sgd.h"          // the optimizer step for dgc, with weight decay
// clang-format on
