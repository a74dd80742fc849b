// places.h: where a model's weights, or an optimizer's moments, lie in the memory of a device, as a
// StreamDelayedAverage takes them. Contiguous tensors are used in place. Others (channels_last) are
// copied before and after each use; so are moments that the optimizer has not made yet, whose
// values are here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

#include "thinwire/core/view.h"
#include "thinwire/delay/stream_delayed.h"

namespace thinwire::ddp {

class Places {
 public:
  // Begins with copies of `tensors`, by parameter in the order of the buckets.
  Places(const std::vector<Bucket>& buckets, const std::vector<at::Tensor>& tensors);

  // The tensors as they are now, undefined ones included. The work is in the current stream.
  // Returns whether the pieces are others than before.
  bool take(const std::vector<at::Tensor>& tensors);
  // After the pieces were changed: the same for tensors that are copied.
  void give();

  const std::vector<LedgerPieces>& pieces() const { return pieces_; }
  // Copies the values of tensors that are not there yet into those that are defined here.
  void fill(const std::vector<at::Tensor>& tensors) const;

 private:
  void place();

  const std::vector<Bucket> buckets_;
  std::vector<float*> at_;         // by parameter: where it was at the last take()
  std::vector<at::Tensor> own_;    // by parameter: its copy; undefined for one used in place
  std::vector<at::Tensor> given_;  // those whose copies are in own_, else undefined
  std::vector<LedgerPieces> pieces_;
};

}  // namespace thinwire::ddp
