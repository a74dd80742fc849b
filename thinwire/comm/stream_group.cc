// stream_group.cc: the group of one.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/stream_group.h"

#include <cstring>

#include "thinwire/core/buffer.h"

namespace thinwire {
namespace {

class SoloStreamGroup final : public StreamGroup {
 public:
  explicit SoloStreamGroup(Device device) : device_(device) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "solo"; }
  Traffic traffic() const override { return {}; }

  void all_reduce(Bytes, DType, ReduceOp, Stream) override {}

  void all_gather(ConstBytes mine, Bytes slots, Stream stream) override {
    keep(mine, slots, stream);
  }
  void all_to_all(ConstBytes mine, Bytes slots, Stream stream) override {
    keep(mine, slots, stream);
  }

 private:
  void keep(ConstBytes mine, Bytes slots, Stream stream) const {
    if (mine.empty()) return;
    if (device_.kind == Device::Kind::cpu)
      std::memcpy(slots.data(), mine.data(), mine.size());
    else
      copy_bytes(slots.data(), mine.data(), mine.size(), stream);
  }

  Device device_;
};

}  // namespace

std::unique_ptr<StreamGroup> make_solo_stream_group(Device device) {
  return std::make_unique<SoloStreamGroup>(device);
}

}  // namespace thinwire
