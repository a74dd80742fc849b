// tally.h: what an exchange or a delayed average reports: counts, times of its stages, the traffic
// of its engine; and the observer that follows the stages. Any thread may call it. Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>

#include "thinwire/comm/group.h"
#include "thinwire/exchange/exchange.h"

namespace thinwire {

class Tally {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static Time now() { return std::chrono::steady_clock::now(); }

  // Counts traffic from now on.
  explicit Tally(std::function<Traffic()> traffic);

  Report report() const;
  // Changes the counts.
  void count(const std::function<void(Report&)>& change);
  // Runs a call whose traffic the report leaves out: the ranks agree on something.
  void leave_out(const std::function<void()>& call);

  void observe(Observer observer);
  // A stage has ended. Its time is added to `sum`, if there is one.
  void stage(const char* name, std::uint16_t bucket, std::uint64_t round, Time begin,
             double Report::*sum = nullptr);

 private:
  std::function<Traffic()> traffic_;
  mutable std::mutex mutex_;
  Traffic before_;
  Report report_;
  std::mutex observing_;  // an observer may ask for the report
  Observer observer_;
};

}  // namespace thinwire
