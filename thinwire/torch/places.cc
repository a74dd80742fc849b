// places.cc: pointers of tensors, and copies of those that are not contiguous.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/places.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/zeros.h>

#include "thinwire/core/error.h"

namespace thinwire::ddp {

Places::Places(const std::vector<Bucket>& buckets, const std::vector<at::Tensor>& tensors)
    : buckets_(buckets) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : tensors) {
    own_.push_back(at::zeros(tensor.sizes(), tensor.options()));
    own_.back().copy_(tensor);
    at_.push_back(own_.back().data_ptr<float>());
  }
  given_.resize(tensors.size());
  place();
}

bool Places::take(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> from, to;
  bool moved = false;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = tensors[i];
    const bool in_place = tensor.defined() && tensor.is_contiguous();
    if (!tensor.defined() && !own_[i].defined())
      fail(
          "delay: the optimizer has lost the second moment of a parameter that it had in the step "
          "before; keep its state, or detach() and attach anew");
    if (tensor.defined() && !in_place) {
      if (!own_[i].defined()) own_[i] = at::zeros(tensor.sizes(), tensor.options());
      from.push_back(tensor.detach());
      to.push_back(own_[i]);
    }
    given_[i] = in_place ? at::Tensor() : tensor;
    float* const now = (in_place ? tensor : own_[i]).data_ptr<float>();
    if (in_place) own_[i].reset();
    moved = moved || now != at_[i];
    at_[i] = now;
  }
  if (!from.empty()) at::_foreach_copy_(to, from);
  if (moved) place();
  return moved;
}

void Places::give() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> from, to;
  for (std::size_t i = 0; i < given_.size(); ++i) {
    if (!given_[i].defined()) continue;
    from.push_back(own_[i]);
    to.push_back(given_[i].detach());
  }
  if (!from.empty()) at::_foreach_copy_(to, from);
}

void Places::fill(const std::vector<at::Tensor>& tensors) const {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].defined() && own_[i].defined()) tensors[i].copy_(own_[i]);
}

void Places::place() {
  pieces_.clear();
  std::size_t i = 0;
  for (const Bucket& bucket : buckets_) {
    LedgerPieces& pieces = pieces_.emplace_back();
    for (const Parameter& parameter : bucket.parameters)
      add_pieces(pieces, at_[i++], parameter.offset, parameter.count);
  }
}

}  // namespace thinwire::ddp
