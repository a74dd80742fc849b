// direct_carrier.cc: host memory by a group of the host.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/carrier.h"

namespace thinwire {
namespace {

class DirectCarrier final : public Carrier {
 public:
  explicit DirectCarrier(Group& group) : group_(group) {}

  Pending send(Passage& passage, const Written& written, Stream stream) override {
    return passage.start(group_, written, stream);
  }
  bool waits() const override { return true; }
  Traffic traffic() const override { return group_.traffic(); }

 private:
  Group& group_;
};

}  // namespace

std::unique_ptr<Carrier> make_carrier(Group& group) {
  return std::make_unique<DirectCarrier>(group);
}

}  // namespace thinwire
