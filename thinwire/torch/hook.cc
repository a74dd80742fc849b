// hook.cc: DDP's buckets in, futures out.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/hook.h"

#include <utility>

namespace thinwire::ddp {

c10::intrusive_ptr<c10::ivalue::Future> DdpHook::runHook(c10d::GradBucket& bucket) {
  if (fill_) fill_->complete(bucket.getIndex());
  attachment_->submit(bucket, usage_of(reducer_));
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  future->markCompleted(c10::IValue(bucket.getBuffer()));
  return future;
}

at::Tensor DdpHook::parseHookResult(const c10::IValue& result) {
  attachment_->finish();
  return c10d::detail::parseCppCommHookResult(result);
}

void register_hook(c10d::Reducer& reducer, std::shared_ptr<Attachment> attachment, bool fill) {
  reducer.register_comm_hook(std::make_unique<DdpHook>(reducer, std::move(attachment), fill));
}

void run_plain(Attachment& attachment, c10d::GradBucket& bucket, const c10d::Reducer* reducer) {
  attachment.submit(bucket, reducer == nullptr ? std::nullopt : usage_of(*reducer));
  if (bucket.isLast()) attachment.finish();
}

}  // namespace thinwire::ddp
