// striped.h: split-reduce and parameter servers, as a compressor that wraps compressors. Each
// bucket is cut into stripes, one per owner (a rank, or a server):
//
//     round 0, scatter   every worker encodes each stripe separately and sends it to the owner,
//                        which decodes all of them and averages
//     round 1, gather    owners encode the averages, with a second residual; all ranks decode the
//                        same bytes
//
// So a rank sends about two frames of the bucket for any number of workers, where a gather sends
// one to each. With onebit inside, this is the double quantisation of the 1-bit SGD paper.
//
// The sum of all residuals is that of the workers, plus that of the owners counted once per worker,
// because owners' residuals belong to averages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "thinwire/compress/compressor.h"
#include "thinwire/core/options.h"
#include "thinwire/exchange/kind.h"
#include "thinwire/exchange/stripe_state.h"
#include "thinwire/exchange/stripes.h"

namespace thinwire {

// The stripes of a bucket and their compressors, under either contract of compressor.h.
class Striped : public Compressor {
 public:
  int rounds() const override { return 2; }
  bool needs_norm() const override;
  Leg leg(std::uint64_t step, int round) const override;
  void visit_state(StateVisitor& visitor) override;

 protected:
  using Make = std::unique_ptr<Compressor> (*)(const Config&, const Bucket&, const Site&);

  struct Lane {
    Stripe stripe;
    Stripe average;                    // the same stripe under the owner's names
    int owner = 0;                     // rank of the owner
    std::unique_ptr<Compressor> push;  // gradients to the owner; null for an empty stripe
    std::unique_ptr<Compressor> pull;  // averages to all ranks; null for an empty stripe

    bool empty() const { return stripe.count() == 0; }
    TensorView of(const TensorView& bucket) const;
  };

  // `site` is the rank among all ranks, including servers. Scheme and kind must fit: see
  // check_fit().
  Striped(Config config, const ExchangeKind& kind, const Bucket& bucket, const Site& site,
          Make make);

  bool owns(const Lane& lane) const { return lane.owner == site_.rank && !lane.empty(); }
  bool works() const { return site_.rank < workers_; }

  Bucket bucket_;
  Site site_;
  int workers_;
  bool bucket_norm_ = false;  // clips by the norm of the bucket, not of the stripe
  std::vector<Lane> lanes_;
  bool averaged_ = false;  // whether this step has changed the owner's memory
};

class StripedCompressor final : public Striped {
 public:
  StripedCompressor(const Config& config, const ExchangeKind& kind, const Bucket& bucket,
                    const Site& site);

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override;
  std::span<const std::size_t> piece_sizes() const override { return sizes_; }
  std::optional<bool> sound() const override;
  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override;
  bool learns(int round) const override;
  void undo(const Turn& turn) override;
  void forget(const Turn& turn, TensorView gradient) override;

 private:
  std::size_t encode_gradient(const Turn& turn, TensorView gradient, Bytes out);
  std::size_t encode_average(const Turn& turn, Bytes out);
  Status decode_gradients(const Turn& turn, const Inbox& inbox);
  Status decode_averages(const Turn& turn, const Inbox& inbox, TensorView average);
  void restore_owned();

  std::string who_;
  std::vector<std::size_t> sizes_;  // sizes of the last pieces sent
  std::vector<float> mean_;         // average of this rank's stripe, from round 0 to round 1
  Snapshot before_;                 // this owner's memory before the step, for undo()
};

}  // namespace thinwire
