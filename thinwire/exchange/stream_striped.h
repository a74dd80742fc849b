// stream_striped.h: split-reduce and servers (striped.h) under the contract of a device: every call
// only enqueues. Slots are bounded, lengths and verdicts stay on the device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/core/buffer.h"
#include "thinwire/exchange/striped.h"

namespace thinwire {

class StreamStriped final : public Striped {
 public:
  // Throws when the second scheme cannot restore its memory on the device.
  StreamStriped(const Config& config, const ExchangeKind& kind, const Bucket& bucket,
                const Site& site);

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override;
  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override;
  void undo(const Turn& turn) override;
  void conclude(const Turn& turn, TensorView gradient, float fill) override;

 private:
  void encode_gradient(const Turn& turn, TensorView gradient, Bytes out);
  void encode_average(const Turn& turn, Bytes out);
  Status decode_gradients(const Turn& turn, const Inbox& inbox);
  Status decode_averages(const Turn& turn, const Inbox& inbox, TensorView average);
  void join(const Turn& turn, std::size_t first, std::size_t count) const;

  Verdict* verdict(std::size_t stripe) const { return verdicts_.as<Verdict>() + stripe; }
  TensorView mean() const;

  const Lane* owned_ = nullptr;  // this rank's stripe, if it has one
  Buffer mean_;                  // of that stripe, from round 0 to round 1
  Buffer norm_;                  // of the bucket, and memory for it
  // A verdict per stripe for its averages, then one for the gradients that an owner decodes, and
  // one for the averages that it encodes.
  Buffer verdicts_;
  Buffer owners_;  // by verdict: the rank that sent the bytes, or -1
};

}  // namespace thinwire
