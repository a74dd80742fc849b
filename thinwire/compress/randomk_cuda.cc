// randomk_cuda.cc: the compressor of randomk in device memory. Blocks are drawn where they are
// packed and unpacked; no list of them is kept.
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "thinwire/compress/randomk.h"
#include "thinwire/core/error.h"
#include "thinwire/memory/csc_cuda.h"

namespace thinwire {
namespace {

class RandomkCudaCompressor final : public Compressor {
 public:
  RandomkCudaCompressor(const RandomkSettings& settings, const Bucket& bucket, const Site& site)
      : settings_(settings),
        bucket_(bucket),
        site_(site),
        who_("rank " + std::to_string(site.rank) + ", bucket " + std::to_string(bucket.id)),
        grid_{bucket.elements(), settings.block},
        strata_{grid_.count(), grid_.share(settings.density)},
        values_(grid_.packed(strata_.count)),
        memory_(bucket, grid_, settings.rule, {DType::f32, site.world}, false, site.device) {}

  Leg leg(std::uint64_t, int) const override {
    return {Reduction::sum, DType::f32, values_ * sizeof(float)};
  }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    require_gradient(gradient, bucket_, site_.device, who_);
    stream_ = turn.stream;
    memory_.take_in(gradient, turn.verdict, turn.stream);
    memory_.send(picks(turn), values_, Velocity::mask, gradient, out.data(), turn.stream);
    memory_.condemn(reinterpret_cast<float*>(out.data()), turn.stream);
    return out.size();
  }

  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    require_gradient(average, bucket_, site_.device, who_);
    memory_.receive(picks(turn), values_, inbox.data.data(), average, turn.verdict, turn.stream);
    return {};
  }

  void undo(const Turn&) override { fail("on a device a step ends with conclude()"); }

  void conclude(const Turn& turn, TensorView gradient, float fill) override {
    memory_.conclude(gradient, fill, turn.verdict, turn.stream);
  }

  void visit_state(StateVisitor& visitor) override { memory_.visit_state(visitor, stream_); }

 private:
  CscPicks picks(const Turn& turn) const {
    return {nullptr, strata_, settings_.stream(turn.step, bucket_)};
  }

  RandomkSettings settings_;
  Bucket bucket_;
  Site site_;
  std::string who_;  // "rank 1, bucket 3", for errors
  CscGrid grid_;
  Strata strata_;
  std::size_t values_;  // elements that travel
  CscCudaMemory memory_;
  Stream stream_;  // of the last step
};

}  // namespace

std::unique_ptr<Compressor> make_randomk_cuda(const RandomkSettings& settings, const Bucket& bucket,
                                              const Site& site) {
  return std::make_unique<RandomkCudaCompressor>(settings, bucket, site);
}

}  // namespace thinwire
