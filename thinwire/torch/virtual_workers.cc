// virtual_workers.cc: buckets of all workers, in turn.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/virtual_workers.h"

#include <ATen/ops/tensor.h>

#include <algorithm>

#include "thinwire/core/error.h"

namespace thinwire::ddp {
namespace {

c10d::GradBucket virtual_bucket(std::size_t index, std::size_t count,
                                const std::vector<at::Tensor>& parameters,
                                const at::Tensor& gradient) {
  std::vector<std::size_t> offsets, lengths;
  std::vector<c10::IntArrayRef> sizes;
  std::size_t offset = 0;
  for (const at::Tensor& parameter : parameters) {
    offsets.push_back(offset);
    lengths.push_back(static_cast<std::size_t>(parameter.numel()));
    sizes.push_back(parameter.sizes());
    offset += lengths.back();
  }
  return c10d::GradBucket(index, count, gradient, offsets, lengths, sizes, parameters,
                          std::nullopt);
}

}  // namespace

VirtualWorkers::VirtualWorkers(int count,
                               const std::vector<std::pair<std::string, at::Tensor>>& names,
                               const AttachmentOptions& options) {
  if (count < 1) fail("simulate: expected at least 1 worker, got ", count);
  for (const auto& [name, parameter] : names) parameters_.push_back(parameter);
  for (int worker = 0; worker < count; ++worker) {
    Connections connections;
    connections.group = make_virtual_group(worker, count);
    connections.job = job_;
    check_courier(connections, options.config, options.exchange);
    workers_.push_back(std::make_shared<Attachment>(std::move(connections), names, options));
  }
}

void VirtualWorkers::exchange(const std::vector<std::vector<at::Tensor>>& cut,
                              const std::vector<std::vector<at::Tensor>>& gradients,
                              const std::vector<int>& used) {
  // Counts of all workers: what one of them has used is averaged like everything else.
  const at::Tensor counts = at::tensor(used, at::kInt);
  std::optional<Usage> usage;
  if (std::ranges::find(used, 0) != used.end())
    usage.emplace(Usage{parameters_, counts, /*fixed=*/false});
  job_->spread(usage.has_value());
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    for (std::size_t b = 0; b < cut.size(); ++b) {
      c10d::GradBucket bucket = virtual_bucket(b, cut.size(), cut[b], gradients[w][b]);
      workers_[w]->submit(bucket, usage);
    }
  }
  for (const auto& worker : workers_) worker->finish();
}

}  // namespace thinwire::ddp
