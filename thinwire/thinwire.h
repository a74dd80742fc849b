// thinwire.h: the library, in order of use. A program that averages gradients needs only this header.
// SPDX-License-Identifier: Apache-2.0
#pragma once

// In order of use, not of the alphabet.
// clang-format off
#include "thinwire/core/error.h"           // the one exception
#include "thinwire/core/view.h"            // buckets, parameters, tensors that a caller owns
#include "thinwire/core/options.h"         // "dgc:density=0.001" as a value
#include "thinwire/core/state.h"           // save and load, by name
#include "thinwire/core/parallel.h"        // how many threads the kernels may use
#include "thinwire/comm/group.h"           // the workers of a job
#include "thinwire/comm/local.h"           // ... as threads of this process (mpi: thinwire/comm/mpi/mpi.h)
#include "thinwire/comm/link.h"            // ... over an emulated link
#include "thinwire/compress/registry.h"    // the schemes
#include "thinwire/exchange/kind.h"        // how their bytes meet: "split", "server:2"
#include "thinwire/exchange/exchange.h"    // averages the buckets of a model, step by step
#include "thinwire/exchange/replicas.h"    // are all workers' weights still the same?
#include "thinwire/delay/delayed.h"        // training that does not wait for the link: delayed averaging
#include "thinwire/kernels/sgd.h"          // the optimizer half of DGC: weight decay with its own momentum
// clang-format on
