// codec_cuda.h: a codec (codec.h) in device memory. Its payloads, residuals and averages have the
// bits of its twin on the CPU. All calls only enqueue; coded_cuda.cc adds the frame.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "thinwire/compress/frames_cuda.h"
#include "thinwire/compress/sign.h"
#include "thinwire/compress/threshold_codec.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/state.h"
#include "thinwire/kernels/draw.h"
#include "thinwire/kernels/int8.h"
#include "thinwire/kernels/limit.h"
#include "thinwire/kernels/qsgd.h"

namespace thinwire {

// One step of one bucket. All pointers are to device memory.
struct CodedStep {
  TensorView gradient;
  MemoryRule rule;
  float *u = nullptr, *v = nullptr;  // null where the memory does not use them
  DrawKey key;
  std::uint8_t* payload = nullptr;
  FrameState* frame = nullptr;
  Verdict* verdict = nullptr;
  Stream stream;
};

class CudaCodec {
 public:
  virtual ~CudaCodec() = default;

  virtual BlockRule payload_rule() const = 0;
  // What average() goes by when it adds up the checksums of the frames; null when it does not.
  virtual const block_frame::FrameSums* sums() const { return nullptr; }

  // Whether conclude() needs no payload, because the codec remembers what it has sent.
  virtual bool remembers() const { return false; }
  // What keep() copies beside the memory; null: nothing.
  virtual const Buffer* state() const { return nullptr; }

  // Adds the gradient to the memory, writes the payload, and keeps the rest. Elements beyond the
  // limit are reported in the frame and in the verdict.
  virtual void encode(const CodedStep& step) = 0;

  // average = share * the sum of the decoded payloads, added in rank order. Numbers that no encoder
  // writes are reported in the verdict. Does nothing when the step is void or this rank's gradient
  // is still needed.
  virtual void average(const BlockPayloads& payloads, float share, TensorView average,
                       Stream stream) = 0;

  // When the step is void: takes it back, and fills the gradient.
  virtual void conclude(const CodedStep& step, float fill) = 0;

  // Waits for the device.
  virtual void visit_state(StateVisitor&, Stream) {}
};

// The compressor around such a codec.
std::unique_ptr<Compressor> make_coded_cuda(std::uint8_t scheme, std::uint64_t seed,
                                            const MemoryRule& memory,
                                            std::unique_ptr<CudaCodec> codec, const Bucket& bucket,
                                            const Site& site);

std::unique_ptr<CudaCodec> int8_codec_cuda(const Int8Rule& rule, std::size_t elements,
                                           Device device);
std::unique_ptr<CudaCodec> qsgd_codec_cuda(const QsgdRule& rule, std::size_t elements,
                                           Device device);
std::unique_ptr<CudaCodec> natural_codec_cuda(std::size_t elements, Device device);
std::unique_ptr<CudaCodec> sign_codec_cuda(SignLevels levels, const std::vector<SignGroup>& groups,
                                           int ranks, Device device);
// `sends`: it writes payloads too; `keeps`: there is a residual.
std::unique_ptr<CudaCodec> threshold_codec_cuda(const ThresholdSettings& settings,
                                                const Bucket& bucket, int ranks, bool sends,
                                                bool keeps, Device device);

// Schemes whose compressors are their own.
std::unique_ptr<Compressor> make_signum_cuda(float momentum, bool by_sum, const Bucket& bucket,
                                             const Site& site);
std::unique_ptr<Compressor> make_terngrad_cuda(double clip, bool by_sum, std::uint64_t seed,
                                               const Bucket& bucket, const Site& site);

}  // namespace thinwire
