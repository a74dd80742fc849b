// coded.h: the compressor around a codec. It applies the memory, calls the codec, sends a block
// frame through one gather, and adds the payloads of all ranks in rank order.
//
//     none       x = g                       keeps nothing
//     residual   x = g + v,  v = x - sent    error feedback
//     momentum   u = m u + g,  x = u + v,  v = x - sent    DGC's momentum correction
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "thinwire/compress/codec.h"
#include "thinwire/compress/compressor.h"
#include "thinwire/compress/memory_options.h"
#include "thinwire/core/options.h"
#include "thinwire/wire/frame.h"

namespace thinwire {

// Options that quantisers share: the elements of a block (a multiple of 64, up to 8192), and the
// seed of the random draws.
std::size_t read_block_size(const Options& options, const std::string& name);
std::uint64_t read_seed(const Options& options);

class CodedCompressor final : public Compressor {
 public:
  CodedCompressor(std::uint8_t scheme, std::uint64_t seed, const MemoryRule& memory,
                  std::unique_ptr<Codec> codec, const Bucket& bucket, const Site& site);

  Leg leg(std::uint64_t step, int round) const override;
  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override;
  std::optional<bool> sound() const override { return sound_; }
  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override;
  bool learns(int) const override { return false; }
  void undo(const Turn& turn) override;
  void forget(const Turn& turn, TensorView gradient) override;
  void visit_state(StateVisitor& visitor) override;

 private:
  std::span<const float> with_momentum(std::span<const float> gradient);
  std::vector<float> take_sent();

  std::uint8_t scheme_;
  std::uint64_t seed_;
  MemoryRule memory_;
  std::unique_ptr<Codec> codec_;
  Bucket bucket_;
  Site site_;
  std::string who_;                   // "rank 1, bucket 3", for errors
  std::vector<float> u_, v_, fed_;    // momentum, residual, and the codec's input with nesterov
  std::vector<std::byte> sent_;       // the last payload, for undo()
  bool sound_ = true;                 // the last gradient was within the limit
  std::vector<ConstBytes> payloads_;  // of all ranks, while they are decoded
};

}  // namespace thinwire
