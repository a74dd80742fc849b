// shapes.h: the parameters of models, and buckets of them, for benchmarks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "thinwire/core/view.h"

namespace thinwire::bench {

using Shapes = std::vector<std::vector<std::int64_t>>;

// torchvision's, 25.6 million parameters.
inline Shapes resnet50() {
  Shapes shapes = {{64, 3, 7, 7}, {64}, {64}};
  std::int64_t width = 64;
  const auto add = [&](std::vector<std::int64_t> shape) {
    shapes.push_back(shape);
    shapes.push_back({shape[0]});  // with its norm layer
    shapes.push_back({shape[0]});
  };
  const std::int64_t stages[][2] = {{3, 64}, {4, 128}, {6, 256}, {3, 512}};
  for (const auto& [blocks, inner] : stages) {
    for (std::int64_t block = 0; block < blocks; ++block) {
      add({inner, width, 1, 1});
      add({inner, inner, 3, 3});
      add({4 * inner, inner, 1, 1});
      if (block == 0) add({4 * inner, width, 1, 1});
      width = 4 * inner;
    }
  }
  shapes.push_back({1000, 2048});
  shapes.push_back({1000});
  return shapes;
}

// 138 million parameters.
inline Shapes vgg16() {
  Shapes shapes;
  std::int64_t width = 3;
  for (const std::int64_t next : {64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512}) {
    shapes.push_back({next, width, 3, 3});
    shapes.push_back({next});
    width = next;
  }
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{4096, 25088}, {4096, 4096}, {1000, 4096}}) {
    shapes.push_back({rows, cols});
    shapes.push_back({rows});
  }
  return shapes;
}

// 24 layers of width 2048 and 50257 words: 1.3 billion parameters.
inline Shapes transformer() {
  const std::int64_t width = 2048;
  Shapes shapes = {{50257, width}, {2048, width}};
  for (int layer = 0; layer < 24; ++layer) {
    for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{3 * width, width},
                                     {width, width},
                                     {4 * width, width},
                                     {width, 4 * width}}) {
      shapes.push_back({rows, cols});
      shapes.push_back({rows});
    }
    for (int i = 0; i < 4; ++i) shapes.push_back({width});
  }
  return shapes;
}

// All parameters in one bucket.
inline Bucket bucket_with(const Shapes& shapes) {
  Bucket bucket;
  std::size_t at = 0;
  for (const auto& shape : shapes) {
    std::size_t count = 1;
    for (const std::int64_t side : shape) count *= static_cast<std::size_t>(side);
    bucket.parameters.push_back({std::to_string(at), at, count, shape});
    at += count;
  }
  return bucket;
}

// Buckets of about 25 MB, as DDP makes them.
inline std::vector<Bucket> buckets_with(const Shapes& shapes) {
  std::vector<Bucket> buckets;
  for (const auto& shape : shapes) {
    if (buckets.empty() || buckets.back().elements() * sizeof(float) > 25'000'000)
      buckets.push_back({static_cast<std::uint16_t>(buckets.size()), {}});
    Bucket& bucket = buckets.back();
    std::size_t count = 1;
    for (const std::int64_t side : shape) count *= static_cast<std::size_t>(side);
    bucket.parameters.push_back(
        {std::to_string(bucket.parameters.size()), bucket.elements(), count, shape});
  }
  return buckets;
}

}  // namespace thinwire::bench
