// tally.cc: counts under a lock.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/tally.h"

#include <utility>

namespace thinwire {

Tally::Tally(std::function<Traffic()> traffic)
    : traffic_(std::move(traffic)), before_(traffic_()) {}

Report Tally::report() const {
  const std::lock_guard lock(mutex_);
  Report report = report_;
  const Traffic now = traffic_();
  report.traffic = {now.sent - before_.sent, now.received - before_.received,
                    now.collectives - before_.collectives};
  return report;
}

void Tally::count(const std::function<void(Report&)>& change) {
  const std::lock_guard lock(mutex_);
  change(report_);
}

void Tally::leave_out(const std::function<void()>& call) {
  const Traffic start = traffic_();
  call();
  const Traffic end = traffic_();
  const std::lock_guard lock(mutex_);
  before_.sent += end.sent - start.sent;
  before_.received += end.received - start.received;
  before_.collectives += end.collectives - start.collectives;
}

void Tally::observe(Observer observer) {
  const std::lock_guard lock(observing_);
  observer_ = std::move(observer);
}

void Tally::stage(const char* name, std::uint16_t bucket, std::uint64_t round, Time begin,
                  double Report::*sum) {
  const Time end = now();
  if (sum) {
    const std::lock_guard lock(mutex_);
    report_.*sum += std::chrono::duration<double>(end - begin).count();
  }
  const std::lock_guard lock(observing_);
  if (observer_) observer_({name, bucket, begin, end, round});
}

}  // namespace thinwire
