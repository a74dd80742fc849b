// attachment.h: thinwire attached to one DDP model. It takes DDP's buckets as backward completes
// them, has a courier average them, and keeps the scheme's memory across changes: DDP's new cut
// after the first step, a new scheme in mid-run, a restart, a new loss scale.
//
// All buckets of one backward are one step. When DDP has cut its buckets anew, they leave together
// after the last one, once the cut is known; in all other steps each leaves at once. All ranks must
// call a method marked "collective" between the same steps.
//
// Gradients may be on the CPU or on one CUDA device. On a device a step ends for the host before it
// ends for the device, and its outcome is settled later: when the next step begins, or when
// somebody asks for it. Comments say where the host has to wait for the device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "thinwire/exchange/exchange.h"
#include "thinwire/torch/courier.h"
#include "thinwire/torch/held.h"
#include "thinwire/torch/later.h"
#include "thinwire/torch/layout.h"
#include "thinwire/torch/order.h"
#include "thinwire/torch/report.h"
#include "thinwire/torch/state.h"
#include "thinwire/torch/usage.h"

namespace thinwire::ddp {

struct AttachmentOptions {
  Config config;
  ExchangeOptions exchange;
  bool void_as_nan = false;  // a skipped step returns NaN, not zeros, so that a GradScaler sees it
};

class Attachment {
 public:
  // `names` are those of the model's parameters. If empty, a parameter is named after its place in
  // DDP's first cut.
  Attachment(Connections connections, std::vector<std::pair<std::string, at::Tensor>> names,
             AttachmentOptions options);
  ~Attachment();
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;

  // Takes one bucket, in order from 0; its average arrives in the bucket's own buffer. `usage` has
  // DDP's counts of used parameters at the time of the call, if DDP keeps any.
  void submit(c10d::GradBucket& bucket, const std::optional<Usage>& usage);
  // Ends the step, if one is in flight. On the CPU the call waits for the averages; on a device the
  // current stream does. Every error of the step is thrown here, by
  // settle() or by the next submit().
  void finish();
  // The same, and waits until the outcome is known.
  void settle();
  // While the outcome of the last step is not known: 1 on its device where the step is not taken,
  // else 0, for work that is enqueued before the next step. Nothing when it is known.
  std::optional<at::Tensor> not_taken() const;
  // On a device: whether finish() settles, too. Then the outcome is known at the end of backward.
  void set_prompt(bool on);

  // Collective. Takes effect with the next step. Residuals move to the new scheme, or are added to
  // the next gradient.
  void set_scheme(const Config& config, const ExchangeOptions& options);
  Config scheme() const;
  // Throws what set_scheme(), or the first step after it, would throw, and changes nothing.
  void check_scheme(const Config& config, const ExchangeOptions& options) const;
  void set_void_as_nan(bool on);

  // `ask` is called before each step. It returns, by parameter, the factor to apply to its momentum
  // u first (1 for parameters that are not named), so that a momentum other than the scheme's
  // acts.
  void on_begin(std::function<Factors()> ask);
  // Looks at one nonzero element of the last averages: the share of it that the gradient still has.
  // 1 if nobody has changed gradients since, or if that is not known.
  double share_kept() const;

  // AMP's loss scale, as the tensor that its scaler keeps up to date. The memory follows it.
  void set_scale(const at::Tensor& scale);
  // On a device: starts a copy of the current scale to the host. The next step then need not wait
  // for the device to read it, unless somebody changes the tensor meanwhile.
  void note_scale();

  State state();
  Names layout() const;
  // Takes effect with the next step. Entries of parameters that the model does not have are
  // ignored. `steps`, if given, is the number of steps taken before the state was saved, the same
  // on all ranks.
  void load(State state, Names layout, std::optional<std::uint64_t> steps);

  // Both settle the last step. The step counts do not: `taken` counts since the process started,
  // `steps` continues over restarts.
  Report report();
  Step last_step();
  std::uint64_t taken() const;
  std::uint64_t steps() const;
  void on_step(std::function<void(const Step&)> callback);

  // The stream of the courier, for tests.
  Stream stream() const;

  // Collective: throws when a parameter differs between ranks, and names it.
  void check_replicas();

 private:
  static constexpr const char* scale_entry = "link/scale";  // the key in saved states

  struct Seen {
    std::vector<const void*> parameters;  // identity
    at::Tensor gradient;
  };

  void check_single() const;
  void begin(const at::Tensor& first);
  void arrange();
  void renew(const std::vector<Bucket>& buckets, bool same_cut);
  void retire();
  void launch();
  void hand_over(std::size_t bucket, const at::Tensor& gradient);
  void pay(const Bucket& bucket, const at::Tensor& gradient);
  void follow_scale();
  void ask_factors();
  void apply_factors();
  bool samples(c10::Device device) const;
  void sample(const std::vector<at::Tensor>& gradients);
  double scale_now();
  void check(const at::Tensor& gradient, std::size_t bucket) const;
  void take_back(const std::vector<at::Tensor>& gradients);
  void name_parameters();
  std::vector<Bucket> buckets_seen();
  std::optional<Step> end_step();
  std::optional<bool> finish_courier();
  [[noreturn]] void refuse_part(const std::string& besides) const;
  std::optional<Step> close(bool skipped);
  State saved();
  std::string where() const;

  mutable std::mutex mutex_;
  Connections connections_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  std::unordered_map<const void*, std::size_t> index_;  // parameter -> place in parameters_
  AttachmentOptions options_;
  bool renewed_ = true;  // the courier is not one of options_ yet

  std::vector<Bucket> buckets_;  // the cut that is exchanged
  std::unique_ptr<Courier> courier_;
  std::vector<Bucket> seen_;                          // DDP's cut in the last step
  std::vector<std::vector<const void*>> identities_;  // ... as it is compared with each step
  bool settled_ = false;                              // ... and it is ours
  // Bucket 0's buffer. It is kept alive, so a new cut always shows as a new address.
  at::Tensor first_;
  int staged_ = 0;  // steps since the load in which DDP's cut differed from the loaded one
  bool under_way_ = false;
  bool whole_ = false;  // ... and all of its buckets have come
  bool open_ = false;   // a step has ended whose outcome is not known
  bool prompt_ = false;
  std::vector<Seen> arrived_;  // of this step
  std::optional<Staging> staging_;
  Unused unused_;  // of this step
  Held held_;
  bool watching_ = false;  // held_ learns the parameters in this step

  Orders orders_, seen_orders_;  // of buckets_ and of seen_

  State loaded_;
  Names loaded_layout_;
  std::map<std::string, std::vector<float>> owed_;
  at::Tensor scale_;
  std::optional<Later> noted_scale_;
  std::uint32_t noted_version_ = 0;  // of the tensor
  double last_scale_ = 0;
  std::function<Factors()> ask_;
  Factors factors_;  // of the step that begins
  struct Sample {
    at::Tensor parameter;
    std::size_t at = 0;  // in the order of memory
    float average = 0;
  };
  Sample sample_;

  std::uint64_t earlier_ = 0;  // steps of the runs that this one continues
  Report retired_, before_;
  Step last_;
  std::function<void(const Step&)> callback_;
};

}  // namespace thinwire::ddp
