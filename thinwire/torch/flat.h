// flat.h: a model's weights, or an optimizer's moments, as the flat arrays that a delayed average
// works on. They are copies, not views: parameters keep their storage and strides (channels_last),
// and an optimizer may replace its state (load_state_dict does). The price is two copies per step:
// four streams of memory, where a step of SGD with momentum has five.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "thinwire/core/view.h"
#include "thinwire/delay/delayed.h"

namespace thinwire::ddp {

class Flat {
 public:
  // One array per bucket, of zeros.
  explicit Flat(const std::vector<Bucket>& buckets);

  Arrays arrays() const;

  // Tensors by parameter, in the order of the buckets. A part whose tensor is
  // undefined stays as it is.
  void take(const std::vector<at::Tensor>& tensors);
  void give(const std::vector<at::Tensor>& tensors) const;

 private:
  std::vector<at::Tensor> arrays_;
  std::vector<at::Tensor> places_;  // in them, by parameter, each in its own shape
};

}  // namespace thinwire::ddp
