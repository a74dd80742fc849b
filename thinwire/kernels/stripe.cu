// stripe.cu: verdicts by one thread, means by many.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/launch.cuh"
#include "thinwire/kernels/stripe.h"

namespace thinwire {
namespace {

__global__ void open_kernel(Verdict* stripes, std::size_t count, const Verdict* step) {
  for (std::size_t i = thread_index(); i < count; i += thread_count())
    stripes[i] = stripe_verdict(step);
}

__global__ void join_kernel(Verdict* step, const Verdict* stripes, const std::int32_t* owners,
                            std::size_t count, std::uint32_t bucket) {
  Verdict joined = *step;
  for (std::size_t i = 0; i < count; ++i)
    joined = joined_verdict(joined, stripes[i], owners[i], bucket);
  *step = joined;
}

__global__ void mean_kernel(float* mean, std::size_t count, const Verdict* stripe) {
  const bool is_void = stripe->void_step();
  for (std::size_t i = thread_index(); i < count; i += thread_count())
    mean[i] = owned_mean(mean[i], is_void);
}

}  // namespace

void open_stripes_cuda(Verdict* stripes, std::size_t count, const Verdict* step, Stream stream) {
  open_kernel<<<1, block_threads, 0, handle_of(stream)>>>(stripes, count, step);
  check_launch("open_stripes");
}

void join_stripes_cuda(Verdict* step, const Verdict* stripes, const std::int32_t* owners,
                       std::size_t count, std::uint32_t bucket, Stream stream) {
  join_kernel<<<1, 1, 0, handle_of(stream)>>>(step, stripes, owners, count, bucket);
  check_launch("join_stripes");
}

void owned_mean_cuda(float* mean, std::size_t count, const Verdict* stripe, Stream stream) {
  if (count == 0) return;
  mean_kernel<<<blocks_for(count), block_threads, 0, handle_of(stream)>>>(mean, count, stripe);
  check_launch("owned_mean");
}

}  // namespace thinwire
