// hook.h: an Attachment as DDP's communication hook. At the end of backward DDP waits for the
// hook's futures, bucket by bucket, and then asks for each result. Our futures are ready at once,
// and the first result asked for waits for the whole step, so no extra thread is needed. On
// CUDA, DDP's stream waits there before it copies the first average; the host continues. So the
// futures need not know of a device, and cost no events.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "thinwire/torch/attachment.h"
#include "thinwire/torch/fill.h"

namespace thinwire::ddp {

class DdpHook final : public c10d::CommHookInterface {
 public:
  // The reducer owns the hook.
  DdpHook(const c10d::Reducer& reducer, std::shared_ptr<Attachment> attachment, bool fill)
      : reducer_(reducer), attachment_(std::move(attachment)) {
    if (fill) fill_.emplace(reducer);
  }

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override;

 private:
  const c10d::Reducer& reducer_;
  std::shared_ptr<Attachment> attachment_;
  std::optional<Fill> fill_;
};

// Call this once per reducer: DDP refuses a second hook. With `fill` we copy gradients into their
// buckets (fill.h), which needs gradient_as_bucket_view.
void register_hook(c10d::Reducer& reducer, std::shared_ptr<Attachment> attachment, bool fill);

// The plain form, for frameworks that take a function. It waits inside the last bucket's call, when
// backward has nothing left to compute for this model. DDP reads the results of all buckets only
// after that call. `reducer` owns the bucket, if that is known.
void run_plain(Attachment& attachment, c10d::GradBucket& bucket, const c10d::Reducer* reducer);

}  // namespace thinwire::ddp
