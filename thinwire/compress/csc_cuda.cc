// csc_cuda.cc: the compressor of csc in device memory. Its rounds, bytes and memory are those of
// csc.cc; every call only enqueues.
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "thinwire/compress/csc.h"
#include "thinwire/compress/csc_pick_cuda.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

class CscCudaCompressor final : public Compressor {
 public:
  CscCudaCompressor(const CscSettings& settings, const Bucket& bucket, const Site& site)
      : settings_(settings),
        bucket_(bucket),
        site_(site),
        who_("rank " + std::to_string(site.rank) + ", bucket " + std::to_string(bucket.id)),
        grid_(csc_grid(bucket.elements(), settings.chunk)),
        norms_as_(SummedValues{settings.norms(), site.world}.rule()),
        memory_(bucket, grid_, settings.rule, {settings.values, site.world}, true, site.device),
        norms_(Place::cuda, grid_.count() * sizeof(float), site.device),
        norms_before_(Place::cuda, settings.previous ? norms_.size() : 0, site.device),
        picks_(Place::cuda, grid_.count() * sizeof(std::uint32_t), site.device) {}

  int rounds() const override { return settings_.previous ? 1 : 2; }
  bool in_turn() const override { return true; }

  Leg leg(std::uint64_t step, int round) const override {
    return CscPlan(settings_, grid_, step).leg(round);
  }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    stream_ = turn.stream;
    const CscPlan plan(settings_, grid_, turn.step);
    if (turn.round == 0) {
      require_gradient(gradient, bucket_, site_.device, who_);
      copy_bytes(norms_before_.data(), norms_.data(), norms_before_.size(), turn.stream);
      memory_.take_in(gradient, turn.verdict, turn.stream);
    }
    if (turn.round == 0 && !settings_.previous) {
      csc_write_norms(memory_.device(), norms_as_, false, out.data(), turn.stream);
    } else {
      if (settings_.previous) pick(plan, turn.stream);
      const bool warmup = settings_.is_warmup(turn.step);
      memory_.send(picks(), plan.values, warmup ? Velocity::keep : Velocity::mask, gradient,
                   out.data(), turn.stream);
      if (settings_.previous)
        csc_write_norms(memory_.device(), norms_as_, !warmup, out.data() + plan.value_bytes,
                        turn.stream);
    }
    return out.size();
  }

  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    const CscPlan plan(settings_, grid_, turn.step);
    const bool has_values = turn.round == 1 || settings_.previous;
    if (turn.round == 0)
      csc_read_norms(norms_as_, inbox.data.data() + (has_values ? plan.value_bytes : 0),
                     memory_.device().chunks, norms_.as<float>(), turn.verdict, turn.stream);
    if (has_values) {
      require_gradient(average, bucket_, site_.device, who_);
      memory_.receive(picks(), plan.values, inbox.data.data(), average, turn.verdict, turn.stream);
    } else {
      pick(plan, turn.stream);
    }
    return {};
  }

  void undo(const Turn&) override { fail("on a device a step ends with conclude()"); }

  void conclude(const Turn& turn, TensorView gradient, float fill) override {
    memory_.conclude(gradient, fill, turn.verdict, turn.stream);
    if (settings_.previous)
      csc_restore_norms(norms_.as<float>(), norms_before_.as<float>(), memory_.device().chunks,
                        turn.verdict, turn.stream);
  }

  void visit_state(StateVisitor& visitor) override {
    memory_.visit_state(visitor, stream_);
    if (!settings_.previous) return;
    std::vector<float> norms(grid_.count());
    copy_bytes(norms.data(), norms_.data(), norms_.size(), stream_);
    synchronize(stream_);
    visitor.tensor("bucket" + std::to_string(bucket_.id) + "/norms", norms, Share::replicated);
    copy_bytes(norms_.data(), norms.data(), norms_.size(), stream_);
    synchronize(stream_);
  }

 private:
  CscPicks picks() const { return {picks_.as<std::uint32_t>(), {}, 0}; }

  void pick(const CscPlan& plan, Stream stream) {
    csc_pick(norms_.as<float>(), memory_.device().chunks, static_cast<std::uint32_t>(plan.wanted),
             picks_.as<std::uint32_t>(), stream);
  }

  CscSettings settings_;
  Bucket bucket_;
  Site site_;
  std::string who_;  // "rank 1, bucket 3", for errors
  CscGrid grid_;
  SummedRule norms_as_;
  CscCudaMemory memory_;
  Buffer norms_;         // mean over the workers, as last received
  Buffer norms_before_;  // norms_ before this step
  Buffer picks_;         // of the step
  Stream stream_;        // of the last step
};

}  // namespace

std::unique_ptr<Compressor> make_csc_cuda(const CscSettings& settings, const Bucket& bucket,
                                          const Site& site) {
  return std::make_unique<CscCudaCompressor>(settings, bucket, site);
}

}  // namespace thinwire
