// course.h: the order in which the buckets of a step go through their rounds: encode, collective,
// decode. Buckets are launched by number, and a further round of bucket b follows right after the
// first round of bucket b + 2; where the host must not wait between buckets, after the first round
// of the last. The order depends only on bucket numbers and legs, never on timing, so ranks cannot
// disagree on it. Internal.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <vector>

#include "thinwire/comm/group.h"
#include "thinwire/exchange/carrier.h"
#include "thinwire/exchange/fuse.h"
#include "thinwire/exchange/lane.h"
#include "thinwire/exchange/tally.h"

namespace thinwire {

// What an exchange does with a bucket on its way.
class Stations {
 public:
  virtual Written encode(Lane& lane, int round, Bytes out) = 0;
  // Returns false when the bucket's further rounds are left out; all ranks see the same.
  virtual bool decode(Lane& lane, int round, const Inbox& inbox) = 0;
  // Waits for a collective.
  virtual void wait(Pending& pending) { pending.wait(); }
  // A bucket's collective that was started at `issued` has been waited for.
  virtual void arrived(const Lane& lane, Tally::Time issued) = 0;

 protected:
  ~Stations() = default;
};

class Course {
 public:
  // With `ahead`, collectives are waited for between two launches; else only in complete().
  Course(Lanes& lanes, Stations& stations, Carrier& carrier, const OwnStream& stream, int ranks,
         Fuser fuser, bool ahead);

  // Sends a bucket's first round. Call it by bucket number.
  void launch(std::size_t lane);
  // All buckets are launched: takes them to the end. Last rounds are decoded only here, because
  // only now it is known whether this rank's gradients are sound, so that averages may replace
  // them.
  void complete();
  // The same as far as it goes without waiting for other ranks. Returns whether it is at its end;
  // then do not call complete(). Whenever it is called, collectives start in the same order.
  bool proceed();
  // For ranks in lock-step on one thread, which nobody may keep waiting: all of them launch a
  // bucket, then all keep_up(), as launch() does with `ahead`. When all buckets are launched, all
  // flush(), then all take_one() until it returns false. Then complete() only decodes. Collectives
  // start, and are waited for, in the order of ranks with threads.
  void keep_up();
  void flush();
  bool take_one();
  // Gives a step up that has failed, or that nobody waits for.
  void abandon();

 private:
  struct Flight {
    std::size_t lane = 0;
    int round = 0;
    Pending pending;
    Tally::Time issued{};
    Parcel* parcel = nullptr;  // of several fused buckets; `lane` is the first of them
  };
  // The result of a last round.
  struct Arrival {
    std::size_t lane = 0;
    int round = 0;
    Inbox inbox;
  };

  void send(std::size_t lane, int round);
  void depart(Parcel* parcel);
  bool may_wait();
  void advance();
  void arrive(const Arrival& arrival);

  Lanes& lanes_;
  Stations& stations_;
  Carrier& carrier_;
  const OwnStream& stream_;
  int ranks_;
  Fuser fuser_;
  bool ahead_;
  std::vector<Parcel*> unpacked_;  // parcels whose bytes may still be needed
  std::deque<Flight> flights_;
  std::deque<Flight> late_;       // last rounds that complete() waits for
  std::deque<Arrival> arrivals_;  // not decoded yet
};

}  // namespace thinwire
