// kind.h: how the compressed bytes meet: the third part of a combination, beside compressor and
// memory. As text: "auto", "split", "server:2", "split,second=topk:density=0.01".
//
//     auto      as the scheme travels by itself: all-reduce of sums, or gather of everybody's frames
//     split     split-reduce: a stripe of each bucket per rank; its owner gets everybody's stripe,
//               averages, compresses the average with a residual of its own, and sends it to all
//     server:S  the same with the stripes owned by the last S ranks, which have no gradient
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
  int servers = 0;               // server: how many
  std::optional<Config> second;  // of the owners, for the average; by default as second_of() says

  // Throws an Error that says what was expected.
  static ExchangeKind parse(std::string_view text);
  // The same form back.
  std::string str() const;

  bool striped() const { return form != Form::automatic; }
  int workers(int world) const { return world - servers; }
  bool is_server(int rank, int world) const { return rank >= workers(world); }
  // Ranks that own a stripe of each bucket, and the first of them.
  int owners(int world) const { return form == Form::server ? servers : world; }
  int first_owner(int world) const { return world - owners(world); }
};

// What an owner compresses averages with: `kind.second`, or else the workers' own configuration with
// a plain residual. Momentum and clipping are for gradients: of an average they would be the second.
Config second_of(const ExchangeKind& kind, const Config& config);

// Throws an Error that names the traits that clash when scheme and exchange, or the exchange and
// the number of ranks, make no sense together.
void check_fit(const ExchangeKind& kind, const Config& config);
void check_fit(const ExchangeKind& kind, int world);

}  // namespace thinwire
