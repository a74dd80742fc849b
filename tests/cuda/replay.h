// replay.h: a step as a CUDA graph. A call that waits for the device, allocates, or uses another
// stream cannot be captured.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/cuda/device.h"
#include "tests/gradients.h"
#include "thinwire/compress/registry.h"

namespace thinwire {

// Runs five steps of one rank whose sums and slots are its own payloads, the last one captured or
// not. Returns the averages.
inline std::vector<std::vector<float>> averages_of(const std::string& config, const Bucket& bucket,
                                                   Stream stream, bool captured) {
  const auto one = make_compressor(Config::parse(config), bucket, {0, 1, true, true, gpu});
  const auto queue = static_cast<cudaStream_t>(stream.handle);
  std::vector<std::vector<float>> averages;
  for (std::uint64_t step = 0; step < 5; ++step) {
    const OnGpu<float> gradient(testing::gradient(testing::Shape::normal, bucket.elements(), step));
    const TensorView view(gradient.data(), gradient.size(), DType::f32, gpu);
    const VerdictOnGpu verdict;
    const OnGpu<std::uint64_t> written(std::vector<std::uint64_t>(1));
    std::vector<OnGpu<std::byte>> payloads;
    for (int round = 0; round < one->rounds(); ++round)
      payloads.emplace_back(std::vector<std::byte>(one->leg(step, round).bytes));
    // The first steps and a changed layout may allocate.
    const bool capture = captured && step == 4;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    if (capture) {
      EXPECT_EQ(cudaStreamBeginCapture(queue, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    }
    Turn turn{step, 0, stream, 0, verdict.data(), written.data(), nullptr};
    for (; turn.round < one->rounds(); ++turn.round) {
      const auto& payload = payloads[static_cast<std::size_t>(turn.round)];
      one->encode(turn, view, {payload.data(), payload.size()});
      Inbox inbox;
      inbox.data = {payload.data(), payload.size()};
      inbox.slot_bytes = payload.size();  // of a gather
      EXPECT_TRUE(one->decode(turn, inbox, view).ok());
    }
    one->conclude(turn, view, 0);
    if (capture) {
      EXPECT_EQ(cudaStreamEndCapture(queue, &graph), cudaSuccess);
      EXPECT_EQ(cudaGraphInstantiate(&ready, graph, 0), cudaSuccess);
      EXPECT_EQ(cudaGraphLaunch(ready, queue), cudaSuccess);
    }
    averages.push_back(gradient.download(stream));
    if (capture) {
      EXPECT_EQ(cudaGraphExecDestroy(ready), cudaSuccess);
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    }
  }
  return averages;
}

inline void expect_same_when_captured(const std::string& config, const Bucket& bucket,
                                      Stream stream) {
  SCOPED_TRACE(config);
  const auto outside = averages_of(config, bucket, stream, false);
  const auto inside = averages_of(config, bucket, stream, true);
  for (std::size_t step = 0; step < outside.size(); ++step)
    EXPECT_TRUE(testing::same_bits(outside[step], inside[step])) << "step " << step;
}

}  // namespace thinwire
