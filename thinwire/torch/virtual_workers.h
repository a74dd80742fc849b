// virtual_workers.h: all workers of a data-parallel training in one process: one Attachment each,
// and steps of all of them together. What an Attachment does in a process of its own it does here:
// memory across new cuts and schemes, states, loss scales, unused parameters.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "thinwire/torch/attachment.h"
#include "thinwire/torch/virtual_courier.h"

namespace thinwire::ddp {

class VirtualWorkers {
 public:
  VirtualWorkers(int count, const std::vector<std::pair<std::string, at::Tensor>>& names,
                 const AttachmentOptions& options);

  // By worker. Do not submit to them; everything else may be called between steps.
  const std::vector<std::shared_ptr<Attachment>>& attachments() const { return workers_; }

  using Tensors = std::vector<at::Tensor>;

  // One step: cut[b] are the parameters of bucket b, gradients[w][b] is worker w's flat gradient of
  // them, in memory of its own. Afterwards gradients[0] holds the averages, and the others'
  // content is unspecified. `used`: how many workers have used a parameter, in the order of the
  // names. Gradients on a device pass through pinned memory, because the exchange is the host's.
  void exchange(const std::vector<Tensors>& cut, const std::vector<Tensors>& gradients,
                const std::vector<int>& used);

  // The time that the collectives of the last step would take over the link.
  double seconds_over(const Link& link) const { return job_->seconds_over(link); }

 private:
  const std::vector<Tensors>& on_host(const std::vector<Tensors>& cut,
                                      const std::vector<Tensors>& gradients);

  std::shared_ptr<VirtualJob> job_ = std::make_shared<VirtualJob>();
  Tensors parameters_;
  std::vector<Tensors> twins_;  // of gradients on a device
  std::vector<Tensors> cut_;    // that they are for
  std::vector<std::shared_ptr<Attachment>> workers_;
};

}  // namespace thinwire::ddp
