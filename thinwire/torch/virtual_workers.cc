// virtual_workers.cc: buckets of all workers, in turn.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/virtual_workers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

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

// Copies gradients on a device, and waits for the copies. The twins stay as long as cut and types
// do: an Attachment knows another cut by its other memory.
const std::vector<VirtualWorkers::Tensors>& VirtualWorkers::on_host(
    const std::vector<Tensors>& cut, const std::vector<Tensors>& gradients) {
  if (gradients[0].empty() || gradients[0][0].is_cpu()) return gradients;
  const auto alike = [](const at::Tensor& twin, const at::Tensor& gradient) {
    return twin.sizes() == gradient.sizes() && twin.scalar_type() == gradient.scalar_type();
  };
  const auto same = [](const Tensors& one, const Tensors& other) {
    return std::ranges::equal(
        one, other, [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); });
  };
  if (!std::ranges::equal(cut_, cut, same) || !std::ranges::equal(twins_[0], gradients[0], alike)) {
    cut_ = cut;
    twins_.assign(gradients.size(), {});
    for (std::size_t w = 0; w < gradients.size(); ++w) {
      for (const at::Tensor& gradient : gradients[w]) {
        const auto options = at::TensorOptions().dtype(gradient.scalar_type()).pinned_memory(true);
        twins_[w].push_back(at::empty(gradient.sizes(), options));
      }
    }
  }
  for (std::size_t w = 0; w < gradients.size(); ++w)
    for (std::size_t b = 0; b < gradients[w].size(); ++b)
      twins_[w][b].copy_(gradients[w][b], /*non_blocking=*/true);
  const c10::Device device = gradients[0][0].device();
  const c10::impl::VirtualGuardImpl devices(device.type());
  devices.synchronizeStream(devices.getStream(device));
  return twins_;
}

void VirtualWorkers::exchange(const std::vector<Tensors>& cut,
                              const std::vector<Tensors>& gradients, const std::vector<int>& used) {
  const std::vector<Tensors>& here = on_host(cut, gradients);
  // Counts of all workers: what one of them has used is averaged like everything else.
  const at::Tensor counts = at::tensor(used, at::kInt);
  std::optional<Usage> usage;
  if (std::ranges::find(used, 0) != used.end())
    usage.emplace(Usage{parameters_, counts, /*fixed=*/false});
  job_->spread(usage.has_value());
  for (std::size_t w = 0; w < workers_.size(); ++w) {
    for (std::size_t b = 0; b < cut.size(); ++b) {
      c10d::GradBucket bucket = virtual_bucket(b, cut.size(), cut[b], here[w][b]);
      workers_[w]->submit(bucket, usage);
    }
  }
  for (const auto& worker : workers_) worker->finish();
  if (&here == &gradients) return;
  for (std::size_t b = 0; b < cut.size(); ++b)
    gradients[0][b].copy_(here[0][b], /*non_blocking=*/true);
}

}  // namespace thinwire::ddp
