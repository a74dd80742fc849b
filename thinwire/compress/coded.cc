// coded.cc: memory, codec, frame.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/coded.h"

#include "thinwire/compress/frames.h"
#include "thinwire/core/error.h"
#include "thinwire/core/random.h"
#include "thinwire/kernels/limit.h"
#include "thinwire/wire/block.h"

namespace thinwire {

std::size_t read_block_size(const Options& options, const std::string& name) {
  const long size = options.integer(name, 64, 8192);
  if (size % 64 != 0) fail("option '", name, "': expected a multiple of 64, got ", size);
  return static_cast<std::size_t>(size);
}

std::uint64_t read_seed(const Options& options) {
  return static_cast<std::uint64_t>(options.integer("seed", 0, (1L << 53) - 1));
}

CodedCompressor::CodedCompressor(std::uint8_t scheme, std::uint64_t seed, const MemoryRule& memory,
                                 std::unique_ptr<Codec> codec, const Bucket& bucket,
                                 const Site& site)
    : scheme_(scheme),
      seed_(seed),
      memory_(memory),
      codec_(std::move(codec)),
      bucket_(bucket),
      site_(site),
      who_("rank " + std::to_string(site.rank) + ", bucket " + std::to_string(bucket.id)) {
  // Checked before the first step, and before memory of that size is allocated.
  if (codec_->payload_bytes() > longest_block)
    fail(who_, ": ", bucket.elements(), " elements may take ", codec_->payload_bytes(),
         " bytes, a frame holds at most ", longest_block, "; use smaller buckets");
  if (!site.sends) return;
  if (has_residual(memory.accumulate)) v_.resize(bucket.elements());
  if (has_momentum(memory.accumulate)) u_.resize(bucket.elements());
}

Leg CodedCompressor::leg(std::uint64_t, int) const {
  return {Reduction::gather, DType::f32, block_header_bytes + codec_->payload_bytes()};
}

// u = m u + g. The codec's input is u, or with Nesterov m u + g.
std::span<const float> CodedCompressor::with_momentum(std::span<const float> gradient) {
  const float m = memory_.momentum;
  if (memory_.accumulate == Accumulate::momentum) {
    for (std::size_t i = 0; i < gradient.size(); ++i) u_[i] = m * u_[i] + gradient[i];
    return u_;
  }
  fed_.resize(gradient.size());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    u_[i] = m * (u_[i] + gradient[i]);
    fed_[i] = u_[i] + gradient[i];
  }
  return fed_;
}

std::size_t CodedCompressor::encode(const Turn& turn, TensorView gradient, Bytes out) {
  require_f32_cpu(gradient, bucket_.elements(), who_);
  std::span<const float> fed = gradient.f32();
  FrameHeader head = block_header(scheme_, bucket_, turn.step);
  // An element beyond the limit enters the momentum, and the codec sees it there. forget() clears
  // it.
  if (has_momentum(memory_.accumulate)) fed = with_momentum(fed);
  const Bytes payload = block_payload(out);
  const std::uint64_t seed = stream_seed(seed_, turn.step, bucket_.id, site_.rank);
  const Coded coded = codec_->encode(fed, v_, seed, payload);
  if (!v_.empty())
    sent_.assign(payload.begin(), payload.begin() + static_cast<std::ptrdiff_t>(coded.bytes));
  sound_ = coded.finite;
  head.skipped = !sound_;
  return seal_block(head, coded.bytes, out);
}

Status CodedCompressor::decode(const Turn& turn, const Inbox& inbox, TensorView average) {
  require_f32_cpu(average, bucket_.elements(), who_);
  const FrameHeader expected = block_header(scheme_, bucket_, turn.step);
  if (const Status opened = open_blocks(inbox, site_.world, expected, payloads_); !opened.ok())
    return opened;
  const float share = 1.0f / static_cast<float>(site_.world);
  int culprit = -1;
  const Status status = codec_->average(payloads_, share, average.f32(), culprit);
  inbox.culprit = status.ok() ? -1 : culprit;
  return status;
}

// Decodes this rank's own payload, which is what the residual lacks.
std::vector<float> CodedCompressor::take_sent() {
  std::vector<float> sent(v_.size());
  if (!sent_.empty() && !codec_->add(sent_, 1.0f, sent).ok())
    fail(who_, ": our own payload does not decode; this is a bug of the scheme");
  sent_.clear();
  return sent;
}

void CodedCompressor::undo(const Turn&) {
  const std::vector<float> sent = take_sent();
  for (std::size_t i = 0; i < sent.size(); ++i) v_[i] += sent[i];
}

void CodedCompressor::forget(const Turn&, TensorView gradient) {
  const std::vector<float> sent = take_sent();
  const float* const fed = u_.empty()                                   ? gradient.f32().data()
                           : memory_.accumulate == Accumulate::nesterov ? fed_.data()
                                                                        : u_.data();
  if (!v_.empty())
    take_out({Accumulate::residual}, 1.0f, fed, sent.data(), nullptr, v_.data(), v_.size());
  std::fill(u_.begin(), u_.end(), 0.0f);
  codec_->forget();
}

void CodedCompressor::visit_state(StateVisitor& visitor) {
  if (!v_.empty()) visit_by_parameter(visitor, bucket_, "v", v_, Share::summed);
  if (!u_.empty()) visit_by_parameter(visitor, bucket_, "u", u_, Share::summed);
  codec_->visit_state(visitor);
}

}  // namespace thinwire
