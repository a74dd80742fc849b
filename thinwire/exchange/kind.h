// kind.h: how the compressed gradients of all workers are combined. As text: "auto", "split",
// "server:2", "split,second=topk:density=0.01".
//
//     auto      the scheme's own collective: an all-reduce of sums, or a gather of all frames
//     split     split-reduce: every rank owns a stripe of each bucket. The owner receives the
//               stripe of every worker, averages, compresses the average with its own residual, and
//               sends it to all
//     server:S  the same, with the stripes owned by the last S ranks, which have no gradients
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "thinwire/core/options.h"

namespace thinwire {

struct ExchangeKind {
  enum class Form : std::uint8_t { automatic, split, server };

  Form form = Form::automatic;
  int servers = 0;               // number of servers
  std::optional<Config> second;  // the owners' scheme for averages; see second_of() for the default

  // Throws an Error that says what was expected.
  static ExchangeKind parse(std::string_view text);
  // The same form back.
  std::string str() const;

  bool striped() const { return form != Form::automatic; }
  int workers(int world) const { return world - servers; }
  bool is_server(int rank, int world) const { return rank >= workers(world); }
  // The number of ranks that own a stripe of each bucket, and the first of them.
  int owners(int world) const { return form == Form::server ? servers : world; }
  int first_owner(int world) const { return world - owners(world); }
};

// The scheme that owners use for averages: `kind.second`, or else the workers' configuration with a
// plain residual. It has no momentum and no clipping: these were already applied to the gradients.
Config second_of(const ExchangeKind& kind, const Config& config);

// Throws an Error that names the conflict when the scheme, or the number of ranks, does not fit the
// kind of exchange.
void check_fit(const ExchangeKind& kind, const Config& config);
void check_fit(const ExchangeKind& kind, int world);

}  // namespace thinwire
