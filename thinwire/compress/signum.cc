// signum.cc: Signum with majority vote (Bernstein et al. 2018): each worker sends the signs of its
// momentum, and the update is the sign of the majority.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "thinwire/compress/codec_cuda.h"
#include "thinwire/compress/frames.h"
#include "thinwire/compress/schemes.h"
#include "thinwire/core/error.h"
#include "thinwire/core/parallel.h"
#include "thinwire/kernels/sign.h"
#include "thinwire/kernels/signum.h"
#include "thinwire/wire/block.h"
#include "thinwire/wire/votes.h"

namespace thinwire {
namespace {

constexpr std::uint8_t id = 12;

// A unit of parallel work: whole chunks, enough of them to justify waking a thread.
constexpr std::size_t run_elements = 32 * votes_chunk;

enum class Travel : std::uint8_t { gather, sum };
constexpr std::string_view travel_names[] = {"gather", "sum"};

template <typename T>
float sign_of(T x) {
  return static_cast<float>(x > 0) - static_cast<float>(x < 0);
}

const std::uint8_t* as_bits(ConstBytes bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

class SignumCompressor final : public Compressor {
 public:
  SignumCompressor(float momentum, Travel travel, const Bucket& bucket, const Site& site)
      : momentum_(momentum),
        travel_(travel),
        bucket_(bucket),
        site_(site),
        who_("signum, rank " + std::to_string(site.rank) + ", bucket " + std::to_string(bucket.id)),
        m_(bucket.elements()),
        zeros_((m_.size() + 7) / 8),
        signs_(travel == Travel::sum ? zeros_.size() : 0) {
    if (travel == Travel::sum && site.world > 127) {
      fail(who_, ": travel=sum counts votes in 8 bits, so it takes at most 127 workers, got ",
           site.world, "; use travel=gather");
    }
  }

  Leg leg(std::uint64_t, int) const override {
    if (travel_ == Travel::sum) return {Reduction::sum, DType::i8, m_.size() + 1};
    return {Reduction::gather, DType::f32, block_header_bytes + votes_bound(m_.size())};
  }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    require_f32_cpu(gradient, m_.size(), who_);
    const float* g = gradient.f32().data();
    if (travel_ == Travel::sum) {
      take_in(g, signs_.data());
      return encode_sum(out);
    }
    const Bytes payload = block_payload(out);
    auto* signs = reinterpret_cast<std::uint8_t*>(payload.data() + votes_signs_at(m_.size()));
    FrameHeader head = block_header(id, bucket_, turn.step);
    take_in(g, signs);
    head.skipped = !sound_;
    const std::size_t bytes = seal_votes(m_.size(), std::as_bytes(std::span(zeros_)), payload);
    return seal_block(head, bytes, out);
  }

  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    require_f32_cpu(average, m_.size(), who_);
    return travel_ == Travel::sum ? decode_sum(inbox, average.f32())
                                  : decode_votes(turn.step, inbox, average.f32());
  }

  bool learns(int) const override { return false; }

  std::optional<bool> sound() const override { return sound_; }

  // Sending takes nothing out of the momentum, so there is nothing to put back.
  void undo(const Turn&) override {}
  void forget(const Turn&, TensorView) override { std::fill(m_.begin(), m_.end(), 0.0f); }

  void visit_state(StateVisitor& visitor) override {
    visit_by_parameter(visitor, bucket_, "m", m_, Share::local);
  }

 private:
  // Adds the gradient to the momentum, and writes its signs and zeros as bits.
  void take_in(const float* g, std::uint8_t* signs) {
    const std::size_t runs = (m_.size() + run_elements - 1) / run_elements;
    std::vector<char> sound(runs, 1);
    parallel_for(runs, [&](std::size_t run) {
      const std::size_t at = run * run_elements, count = std::min(run_elements, m_.size() - at);
      sound[run] = signum_pass(momentum_, g + at, m_.data() + at, count, signs + at / 8,
                               zeros_.data() + at / 8);
    });
    sound_ = std::find(sound.begin(), sound.end(), 0) == sound.end();
  }

  // Writes a byte per vote, and one more byte that is set where a gradient was beyond the limit.
  std::size_t encode_sum(Bytes out) const {
    auto* votes = reinterpret_cast<std::int8_t*>(out.data());
    for (std::size_t i = 0; i < m_.size(); ++i)
      votes[i] = static_cast<std::int8_t>(int{m_[i] > 0} - int{m_[i] < 0});
    votes[m_.size()] = sound_ ? 0 : 1;
    return m_.size() + 1;
  }

  Status decode_sum(const Inbox& inbox, std::span<float> average) const {
    const auto* votes = reinterpret_cast<const std::int8_t*>(inbox.data.data());
    if (votes[average.size()] != 0) return {Code::skipped, "a rank's gradient was not finite"};
    for (std::size_t i = 0; i < average.size(); ++i) average[i] = sign_of(votes[i]);
    return {};
  }

  Status decode_votes(std::uint64_t step, const Inbox& inbox, std::span<float> average) {
    const FrameHeader expected = block_header(id, bucket_, step);
    if (const Status opened = open_blocks(inbox, site_.world, expected, payloads_); !opened.ok())
      return opened;
    readers_.resize(payloads_.size());
    for (int rank = 0; rank < site_.world; ++rank) {
      inbox.culprit = rank;
      const auto r = static_cast<std::size_t>(rank);
      if (const Status status = readers_[r].open(m_.size(), payloads_[r]); !status.ok())
        return status;
    }
    inbox.culprit = -1;
    for (std::size_t at = 0; at < average.size(); at += votes_chunk)
      count_votes(average.subspan(at, std::min(votes_chunk, average.size() - at)));
    return {};
  }

  // Counts one chunk of all ranks, which stays in the cache. Floats count exactly up to 2^24
  // workers.
  void count_votes(std::span<float> average) {
    std::fill(average.begin(), average.end(), 0.0f);
    for (VoteReader& reader : readers_) {
      const VoteReader::Chunk chunk = reader.next();
      sign_add(as_bits(chunk.signs), average.size(), 1, -1, average.data());
      // Zeros were counted as +1.
      if (!chunk.zeros.empty())
        sign_add(as_bits(chunk.zeros), average.size(), 0, -1, average.data());
    }
    for (float& votes : average) votes = sign_of(votes);
  }

  float momentum_;
  Travel travel_;
  Bucket bucket_;
  Site site_;
  std::string who_;
  std::vector<float> m_;
  bool sound_ = true;                        // the last gradient was within the limit
  std::vector<std::uint8_t> zeros_, signs_;  // bits of the last step; signs_ only with travel=sum
  std::vector<ConstBytes> payloads_;         // of all ranks, while they are decoded
  std::vector<VoteReader> readers_;
};

std::unique_ptr<Compressor> make(const Options& options, const Bucket& bucket, const Site& site) {
  const auto momentum = static_cast<float>(options.number_from("momentum", 0, 1));
  const auto travel = static_cast<Travel>(options.choice("travel", travel_names));
  if (site.device.kind == Device::Kind::cuda)
    return make_signum_cuda(momentum, travel == Travel::sum, bucket, site);
  return std::make_unique<SignumCompressor>(momentum, travel, bucket, site);
}

}  // namespace

const Scheme& signum_scheme() {
  static const Scheme scheme{
      .name = "signum",
      .id = id,
      .paper = "Bernstein et al. 2018, signSGD with majority vote",
      .summary = "Sends the sign of the momentum; the update is the majority's sign.",
      .bits = "1 (2 where exact zeros are; 8 summed with travel=sum)",
      .reducible = false,
      .biased = true,
      .feedback = false,
      .stochastic = false,
      .momentum = true,
      .cuda = true,
      .options = {{"momentum", "0.9",
                   "Momentum factor of the running mean whose sign is sent, in [0, 1); 0: signSGD. "
                   "Set the optimizer's own momentum to 0."},
                  {"travel", "gather",
                   "Collective: gather (every worker counts all bits) or sum (an all-reduce of "
                   "bytes, up to 127 workers)."}},
      .variants = {"travel=sum", "momentum=0"},
      .bytes = nullptr,
      .traffic = 12.125,
      .make = make,
  };
  return scheme;
}

}  // namespace thinwire
