// schemes.h: declares every scheme for the table in registry.cc.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/compress/registry.h"

namespace thinwire {

const Scheme& dense_scheme();
const Scheme& fp16_scheme();
const Scheme& bf16_scheme();
const Scheme& topk_scheme();
const Scheme& dgc_scheme();
const Scheme& csc_scheme();
const Scheme& onebit_scheme();
const Scheme& threshold_scheme();
const Scheme& terngrad_scheme();
const Scheme& qsgd_scheme();
const Scheme& powersgd_scheme();
const Scheme& signum_scheme();
const Scheme& efsign_scheme();
const Scheme& atomo_scheme();
const Scheme& randomk_scheme();
const Scheme& natural_scheme();
const Scheme& int8_scheme();

}  // namespace thinwire
