// fill.h: copies gradients into DDP's buckets, a whole bucket by one call. With any hook DDP copies
// every gradient by itself when it is ready, and on CUDA each of these copies costs the host and
// the device more than a small kernel. Here .grad becomes the bucket's view as soon as autograd has
// written it, so DDP has nothing to copy, and the gradients follow when the bucket is complete. The
// values are the same. (Since torch 2.13 DDP can do the same: batched_grad_copy.)
//
// Between the two, .grad does not have the gradient yet. So a gradient that others may look at
// there is left to DDP: of a parameter with hooks that run after the accumulation, of a static
// graph, of a backward that makes a graph, or in another stream.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace thinwire::ddp {

class Fill {
 public:
  // The reducer must live longer, and have been made with gradient_as_bucket_view: without, it
  // insists on a .grad outside of the bucket.
  explicit Fill(const c10d::Reducer& reducer);
  ~Fill();
  Fill(const Fill&) = delete;
  Fill& operator=(const Fill&) = delete;

  // Copies the gradients of a bucket that have not been copied yet. Call it before anything reads
  // the bucket.
  void complete(std::size_t bucket);

 private:
  class Waiting;
  class Hook;
  std::shared_ptr<Waiting> waiting_;
};

}  // namespace thinwire::ddp
