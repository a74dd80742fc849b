// stream_carrier.cc: collectives in a second stream, so that the next bucket is encoded meanwhile.
// SPDX-License-Identifier: Apache-2.0
#include <deque>

#include "thinwire/exchange/carrier.h"
#include "thinwire/exchange/passage.h"

namespace thinwire {
namespace {

class StreamCarrier final : public Carrier {
 public:
  StreamCarrier(StreamGroup& group, const OwnStream& stream, std::size_t buckets)
      : group_(group), stream_(stream), line_(stream.device()) {
    for (std::size_t i = 0; i < buckets; ++i) events_.emplace_back(stream.device());
  }

  void send(std::size_t bucket, const Cargo& cargo) override {
    if (cargo.leg.bytes == 0) return;
    Pair& events = events_[bucket];
    events.encoded.record(stream_.get());
    events.encoded.hold_back(line_.get());
    if (cargo.leg.reduction == Reduction::gather)
      group_.all_gather(cargo.out, cargo.slots, line_.get());
    else
      group_.all_reduce(cargo.out, cargo.leg.dtype, reduce_op(cargo.leg), line_.get());
    events.arrived.record(line_.get());
    events.sent = true;
  }

  void receive(std::size_t bucket) override {
    Pair& events = events_[bucket];
    if (events.sent) events.arrived.hold_back(stream_.get());
    events.sent = false;
  }

  Traffic traffic() const override { return group_.traffic(); }
  void break_off() override { group_.break_off(); }

 private:
  struct Pair {
    explicit Pair(Device device) : encoded(device), arrived(device) {}
    Event encoded, arrived;
    bool sent = false;
  };

  StreamGroup& group_;
  const OwnStream& stream_;
  OwnStream line_;
  std::deque<Pair> events_;  // does not move them
};

}  // namespace

std::unique_ptr<Carrier> make_carrier(StreamGroup& group, const OwnStream& stream,
                                      std::size_t buckets) {
  return std::make_unique<StreamCarrier>(group, stream, buckets);
}

}  // namespace thinwire
