// fit.cc: the conditions under which schemes work with delayed averaging.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/delay/fit.h"

#include "thinwire/compress/registry.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

// Adam divides by second moments. Where a scheme holds a part back or rounds it away, a moment may
// be near 0, and the step explodes. These schemes trained well (docs/notebook/delay.md).
bool carries_moments(const DelayOptions& options, const std::string& scheme) {
  if (scheme == "dense" || scheme == "bf16") return true;
  return options.book_b && (scheme == "dgc" || scheme == "topk");
}

}  // namespace

void check_scheme(const DelayOptions& options, const Config& config, bool moments) {
  if (config.scheme == "signum")
    fail(
        "delay: scheme signum gives the sign of a vote, not a mean of updates; take another "
        "scheme");
  const auto momentum = config.options.find("momentum");
  const bool without = momentum != config.options.end() && number_in(momentum->second) == 0;
  if (keeps_momentum(config) && !without)
    fail("delay: scheme ", config.str(),
         " accumulates momentum itself, but the updates that travel have the optimizer's already; "
         "give it momentum=0, or take another scheme");
  if (options.book_b && config.scheme != "dense" && !keeps_residual(config))
    fail(
        "delay: book=b leaves what was not sent in the worker's own model until it is sent, and "
        "scheme ",
        config.str(), " forgets it; take book=a, or a scheme with a residual");
  if (moments && !carries_moments(options, config.scheme))
    fail(
        "delay: Adam divides by second moments, which travel by scheme ", config.str(),
        " too and would lack what it holds back or rounds away; take dense or bf16, or dgc or topk "
        "with correction soft:book=b, which leaves in a worker's own moments what was not sent "
        "yet; or SGD, which takes any scheme");
}

void check_turns(const Config& config, const Compressor& compressor, std::uint64_t depth,
                 bool own) {
  if (!compressor.in_turn()) return;
  if (own)
    fail("delay: book=b reads a worker's own share out of its message, but scheme ", config.str(),
         " makes a collective from the result of the one before; take book=a, or another scheme");
  if (depth > 1)
    fail("delay: scheme ", config.str(),
         " makes a collective from the result of the one before, so that only one message can be "
         "under way: take at least as many local steps as the delay has, or another scheme");
}

void check_fit(const DelayOptions& options, const Config& config, bool moments) {
  check_scheme(options, config, moments);
  const std::size_t rows = 2048, cols = 1024;  // large enough for powersgd's factors of any rank
  const Bucket bucket{0, {{"probe", 0, rows * cols, {rows, cols}}}};
  check_turns(config, *make_compressor(config, bucket, {0, 1}), options.rounds_in_flight(),
              options.book_b);
}

}  // namespace thinwire
