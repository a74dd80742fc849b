// crew.h: which ranks of the job this process is: one of them, or all of them with --virtual. No
// torch here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "apps/train/settings.h"
#include "thinwire/comm/group.h"

namespace thinwire::train {

struct Crew {
  int begin = 0, end = 1;  // ranks of this process
  int world = 1;           // ranks of the job: workers, then servers
  int workers = 1;         // of the job

  bool serves(int rank) const { return rank >= workers; }
  std::size_t size() const { return static_cast<std::size_t>(end - begin); }
  std::size_t place(int rank) const { return static_cast<std::size_t>(rank - begin); }
};

inline Crew crew_of(const Settings& settings, const Group& group) {
  if (settings.virtual_workers > 0 && !settings.in_threads()) {
    const int world = settings.virtual_workers + settings.meeting.servers;
    return {0, world, world, settings.virtual_workers};
  }
  return {group.rank(), group.rank() + 1, group.size(), settings.meeting.workers(group.size())};
}

}  // namespace thinwire::train
