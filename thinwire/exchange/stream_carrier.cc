// stream_carrier.cc: collectives in a second stream, so that the next bucket is encoded meanwhile.
// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "thinwire/exchange/carrier.h"

namespace thinwire {
namespace {

class StreamCarrier final : public Carrier {
 public:
  StreamCarrier(StreamGroup& group, const OwnStream& stream)
      : group_(group), stream_(stream), line_(stream.device()) {}

  Pending send(Passage& passage, const Written&, Stream) override {
    if (passage.leg().bytes == 0) return {};
    Pair& events = events_.try_emplace(&passage, stream_.device()).first->second;
    events.encoded.record(stream_.get());
    events.encoded.hold_back(line_.get());
    passage.start(group_, line_.get());
    events.arrived.record(line_.get());
    return Pending(std::make_unique<Arrival>(events.arrived, stream_.get()));
  }

  bool waits() const override { return false; }
  Traffic traffic() const override { return group_.traffic(); }
  void break_off() override { group_.break_off(); }

 private:
  struct Pair {
    explicit Pair(Device device) : encoded(device), arrived(device) {}
    Event encoded, arrived;
  };

  // The stream waits in place of the host.
  class Arrival final : public Pending::Work {
   public:
    Arrival(const Event& arrived, Stream stream) : arrived_(arrived), stream_(stream) {}
    void wait() override { arrived_.hold_back(stream_); }
    bool done() override { return arrived_.done(); }
    Cost cost() const override { return {}; }  // the group has counted it

   private:
    const Event& arrived_;
    Stream stream_;
  };

  StreamGroup& group_;
  const OwnStream& stream_;
  OwnStream line_;
  std::map<const Passage*, Pair> events_;
};

}  // namespace

std::unique_ptr<Carrier> make_carrier(StreamGroup& group, const OwnStream& stream) {
  return std::make_unique<StreamCarrier>(group, stream);
}

}  // namespace thinwire
