// meeting.h: where the ranks of one process meet, which take turns on one thread: a collective is
// done when the last rank has sent. Messages stay where encoders wrote them (Passage::share), and a
// sum is added once. It counts the traffic as c10d would cause it. Internal to VirtualExchange.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "thinwire/comm/call.h"
#include "thinwire/comm/link.h"
#include "thinwire/exchange/carrier.h"

namespace thinwire {

class Meeting {
 public:
  explicit Meeting(int ranks);

  std::size_t ranks() const { return ranks_; }

  // The carrier of a rank; the meeting must live longer. Its ranks send in turn, rank 0 first.
  std::unique_ptr<Carrier> carrier(int rank);

  void begin_step();

  // The time that rank 0 would wait for the collectives since begin_step(), if nothing else took
  // time.
  double seconds_over(const Link& link) const;

 private:
  class Seat;
  class Attendance;

  struct Collective {
    std::size_t number = 0;  // in the step
    Call call;
    std::vector<Passage*> passages;  // of the ranks that have sent
    std::vector<Cost> costs;         // of all ranks, when it is done
  };

  // Rank 0 starts a collective, or waits for its end.
  struct Mark {
    std::size_t collective = 0;
    bool end = false;
  };

  Pending send(int rank, Passage& passage, const Written& written);
  void carry(Collective& collective);
  void price(Collective& collective);

  std::size_t ranks_;
  std::deque<std::shared_ptr<Collective>> open_;  // some rank has yet to send
  std::uint64_t first_open_ = 0;                  // its number since the start
  std::vector<std::uint64_t> sent_;               // by rank
  std::vector<Traffic> traffic_;                  // by rank
  std::uint64_t step_ = 0;                        // number of the first collective of this step
  std::vector<Mark> marks_;                       // of this step
  std::vector<Cost> slowest_;                     // of all ranks, by collective of this step
};

}  // namespace thinwire
