// coded_cuda.cc: memory, codec and frame in device memory. Its bytes and memory are those of
// coded.cc; every call only enqueues.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/codec_cuda.h"
#include "thinwire/compress/frames.h"
#include "thinwire/core/error.h"
#include "thinwire/core/random.h"
#include "thinwire/kernels/put_back.h"

namespace thinwire {
namespace {

class CodedCudaCompressor final : public Compressor {
 public:
  CodedCudaCompressor(std::uint8_t scheme, std::uint64_t seed, const MemoryRule& memory,
                      std::unique_ptr<CudaCodec> codec, const Bucket& bucket, const Site& site)
      : scheme_(scheme),
        seed_(seed),
        memory_(memory),
        codec_(std::move(codec)),
        payload_(codec_->payload_rule()),
        bucket_(bucket),
        site_(site),
        frames_(site.world, payload_, site.device) {
    if (payload_.most > longest_block)
      fail(who(), ": ", bucket.elements(), " elements may take ", payload_.most,
           " bytes, a frame holds at most ", longest_block, "; use smaller buckets");
    if (!site.sends) return;
    const std::size_t bytes = bucket.elements() * sizeof(float);
    if (has_residual(memory.accumulate)) {
      v_ = Buffer(Place::cuda, bytes, site.device);
      if (!codec_->remembers())
        sent_ = Buffer(Place::cuda, block_slot_bytes(payload_.most), site.device);
    }
    if (has_momentum(memory.accumulate)) u_ = Buffer(Place::cuda, bytes, site.device);
  }

  Leg leg(std::uint64_t, int) const override {
    return {Reduction::gather, DType::f32, block_slot_bytes(payload_.most)};
  }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    require_gradient(gradient, bucket_, site_.device, who());
    stream_ = turn.stream;
    std::byte* const frame = sent_.size() > 0 ? sent_.data() : out.data();
    codec_->encode(step_of(turn, gradient, frame));
    frames_.seal(block_header(scheme_, bucket_, turn.step), payload_, frame, out, turn.written,
                 turn.stream);
    return out.size();
  }

  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    require_gradient(average, bucket_, site_.device, who());
    stream_ = turn.stream;
    const FrameHeader header = block_header(scheme_, bucket_, turn.step);
    const float share = 1.0f / static_cast<float>(site_.world);
    const block_frame::FrameSums* const sums = codec_->sums();
    const BlockPayloads payloads =
        sums != nullptr ? frames_.glance(header, payload_, inbox, *sums, turn.verdict, turn.stream)
                        : frames_.open(header, payload_, inbox, turn.verdict, turn.stream);
    codec_->average(payloads, share, average, turn.stream);
    if (sums != nullptr) frames_.settle(header, payload_, inbox, turn.verdict, turn.stream);
    return {};
  }

  void undo(const Turn&) override { fail("on a device a step ends with conclude()"); }

  void conclude(const Turn& turn, TensorView gradient, float fill) override {
    codec_->conclude(step_of(turn, gradient, sent_.data()), fill);
  }

  void keep(const Turn& turn) override { kept_.keep(kept_arrays(), site_.device, turn.stream); }
  void restore(const Turn& turn) override {
    kept_.restore(kept_arrays(), turn.verdict, turn.stream);
  }

  void visit_state(StateVisitor& visitor) override {
    visit(visitor, v_, "v");
    visit(visitor, u_, "u");
    codec_->visit_state(visitor, stream_);
  }

 private:
  std::string who() const {
    return "rank " + std::to_string(site_.rank) + ", bucket " + std::to_string(bucket_.id);
  }

  std::vector<const Buffer*> kept_arrays() const {
    std::vector<const Buffer*> arrays = {&u_, &v_};
    if (codec_->state() != nullptr) arrays.push_back(codec_->state());
    return arrays;
  }

  CodedStep step_of(const Turn& turn, const TensorView& gradient, std::byte* frame) const {
    CodedStep step;
    step.gradient = gradient;
    step.rule = memory_;
    step.u = u_.as<float>();
    step.v = v_.as<float>();
    step.key = draw_key(stream_seed(seed_, turn.step, bucket_.id, site_.rank));
    step.payload = reinterpret_cast<std::uint8_t*>(frame + block_header_bytes);
    step.frame = frames_.state();
    step.verdict = turn.verdict;
    step.stream = turn.stream;
    return step;
  }

  void visit(StateVisitor& visitor, const Buffer& buffer, const char* name) const {
    if (buffer.size() == 0) return;
    std::vector<float> host(buffer.size() / sizeof(float));
    copy_bytes(host.data(), buffer.data(), buffer.size(), stream_);
    synchronize(stream_);
    visit_by_parameter(visitor, bucket_, name, host, Share::summed);
    copy_bytes(buffer.data(), host.data(), buffer.size(), stream_);
    synchronize(stream_);
  }

  std::uint8_t scheme_;
  std::uint64_t seed_;
  MemoryRule memory_;
  std::unique_ptr<CudaCodec> codec_;
  BlockRule payload_;
  Bucket bucket_;
  Site site_;
  BlockFramesCuda frames_;
  Buffer u_, v_;
  Buffer sent_;  // the last payload in a slot, where a residual lacks it and the codec forgets it
  KeptCopy kept_;
  Stream stream_;  // of the last step
};

}  // namespace

std::unique_ptr<Compressor> make_coded_cuda(std::uint8_t scheme, std::uint64_t seed,
                                            const MemoryRule& memory,
                                            std::unique_ptr<CudaCodec> codec, const Bucket& bucket,
                                            const Site& site) {
  return std::make_unique<CodedCudaCompressor>(scheme, seed, memory, std::move(codec), bucket,
                                               site);
}

}  // namespace thinwire
