// replicas.cc: gathers one checksum per parameter, and compares it with that of rank 0.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/replicas.h"

#include "thinwire/core/crc32c.h"
#include "thinwire/core/error.h"

namespace thinwire {

void check_replicas(Group& group, std::span<const Replica> parameters) {
  std::vector<std::uint32_t> mine;
  mine.reserve(parameters.size());
  for (const Replica& parameter : parameters) mine.push_back(crc32c(parameter.bytes));
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<std::uint32_t> all(ranks * mine.size());
  std::vector<std::size_t> sizes(ranks);
  const auto slot_bytes = std::as_bytes(std::span(mine)).size();
  group
      .all_gather(std::as_bytes(std::span(mine)), slot_bytes,
                  std::as_writable_bytes(std::span(all)), sizes, {})
      .wait();
  for (std::size_t i = 0; i < mine.size(); ++i) {
    for (std::size_t rank = 1; rank < ranks; ++rank) {
      if (all[rank * mine.size() + i] == all[i]) continue;
      fail("rank ", group.rank(), ": replicas differ: parameter '", parameters[i].name,
           "' of rank ", rank,
           " is not that of rank 0; restart from the last checkpoint, and see that every rank "
           "starts from the same "
           "weights and applies the same updates");
    }
  }
}

}  // namespace thinwire
