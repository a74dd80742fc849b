// model.h: a small network, 64 -> H -> H -> 10 with ReLU, and its gradients written by hand.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data.h"
#include "thinwire/core/random.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/replicas.h"

namespace digits {

// Eight partial sums, because a compiler may not reorder one sum of floats into a vector.
inline float dot(const float* a, const float* b, std::size_t count) {
  std::array<float, 8> sums{};
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (std::size_t j = 0; j < 8; ++j) sums[j] += a[i + j] * b[i + j];
  }
  for (; i < count; ++i) sums[0] += a[i] * b[i];
  float sum = 0;
  for (float part : sums) sum += part;
  return sum;
}

inline void add_scaled(float* to, float scale, const float* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] += scale * from[i];
}

// output = input * weight + bias. `weight` is in x out, and `bias` follows it directly. Both are in
// the network's flat arrays, from `offset` on.
struct Layer {
  std::string name;
  std::size_t in, out, offset;
  std::vector<float> output{}, delta{};  // of the last batch; delta: d loss / d output

  std::size_t size() const { return in * out + out; }

  void forward(const float* w, std::span<const float> input) {
    output.resize(input.size() / in * out);
    for (std::size_t row = 0; row < input.size() / in; ++row) {
      float* to = output.data() + row * out;
      std::copy_n(w + in * out, out, to);
      for (std::size_t i = 0; i < in; ++i) add_scaled(to, input[row * in + i], w + i * out, out);
    }
  }

  // Computes the gradient of weight and bias from `delta`.
  void backward(float* g, std::span<const float> input) const {
    std::fill_n(g, size(), 0.0f);
    for (std::size_t row = 0; row < input.size() / in; ++row) {
      const float* from = delta.data() + row * out;
      for (std::size_t i = 0; i < in; ++i) add_scaled(g + i * out, input[row * in + i], from, out);
      add_scaled(g + in * out, 1, from, out);
    }
  }

  // Computes the delta of the layer below from `delta`, through the ReLU between them.
  void backward_input(const float* w, Layer& below) const {
    below.delta.resize(below.output.size());
    for (std::size_t at = 0; at < below.output.size(); ++at) {
      const float* from = delta.data() + at / in * out;
      below.delta[at] = below.output[at] > 0 ? dot(from, w + at % in * out, out) : 0.0f;
    }
  }
};

class Network {
 public:
  // Equal seeds give equal weights, so every worker starts from the same model.
  Network(std::size_t hidden, std::uint64_t seed) {
    layers_ = {{"fc1", pixels, hidden, 0}, {"fc2", hidden, hidden, 0}, {"fc3", hidden, classes, 0}};
    std::size_t size = 0;
    for (Layer& layer : layers_) {
      layer.offset = size;
      size += layer.size();
    }
    weights_.resize(size);
    gradients_.resize(size);
    for (const Layer& layer : layers_) {
      const float range = std::sqrt(6.0f / static_cast<float>(layer.in));  // He et al. 2015
      for (std::size_t i = layer.offset; i < layer.offset + layer.in * layer.out; ++i) {
        weights_[i] = range * (2 * thinwire::random_unit(seed, i) - 1);
      }
    }
  }

  std::span<float> weights() { return weights_; }
  std::span<float> gradients() { return gradients_; }

  // One bucket per layer. Bucket 0 is the last layer, because backward() completes
  // its gradient first.
  std::vector<thinwire::Bucket> buckets() const {
    std::vector<thinwire::Bucket> buckets;
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
      const std::size_t weights = layer->in * layer->out;
      buckets.push_back({static_cast<std::uint16_t>(buckets.size()),
                         {{layer->name + ".weight", 0, weights, {}},
                          {layer->name + ".bias", weights, layer->out, {}}}});
    }
    return buckets;
  }

  std::span<float> gradient(std::size_t bucket) {
    const Layer& layer = layers_[layers_.size() - 1 - bucket];
    return std::span(gradients_).subspan(layer.offset, layer.size());
  }

  // The weights under their names, for comparison between workers.
  std::vector<thinwire::Replica> replicas() const {
    std::vector<thinwire::Replica> replicas;
    for (const Layer& layer : layers_) {
      const auto values = std::span(weights_).subspan(layer.offset, layer.size());
      replicas.push_back({layer.name, std::as_bytes(values)});
    }
    return replicas;
  }

  // Ten scores per image.
  std::span<const float> forward(std::span<const float> images) {
    std::span<const float> input = images;
    for (Layer& layer : layers_) {
      layer.forward(weights_.data() + layer.offset, input);
      if (&layer != &layers_.back()) {
        for (float& value : layer.output) value = std::max(value, 0.0f);
      }
      input = layer.output;
    }
    return input;
  }

  // The gradient of the mean cross-entropy over the last batch of forward(). Calls ready(bucket) as
  // soon as that bucket's gradient is complete and will not be written again.
  template <typename Ready>
  void backward(const Images& batch, Ready ready) {
    start_from_loss(batch.labels);
    for (std::size_t bucket = 0; bucket < layers_.size(); ++bucket) {
      const std::size_t at = layers_.size() - 1 - bucket;
      const Layer& layer = layers_[at];
      layer.backward(gradients_.data() + layer.offset,
                     at == 0 ? std::span(batch.values) : std::span(layers_[at - 1].output));
      ready(static_cast<std::uint16_t>(bucket));
      if (at > 0) layer.backward_input(weights_.data() + layer.offset, layers_[at - 1]);
    }
  }

  // The fraction of images whose highest score is the correct one.
  double accuracy(const Images& images) {
    const std::span<const float> scores = forward(images.values);
    std::size_t right = 0;
    for (std::size_t i = 0; i < images.size(); ++i) {
      const auto row = scores.subspan(i * classes, classes);
      right += std::max_element(row.begin(), row.end()) - row.begin() == images.labels[i] ? 1 : 0;
    }
    return static_cast<double>(right) / static_cast<double>(images.size());
  }

 private:
  // Softmax and cross-entropy together: the derivative by a score is its probability, minus one for
  // the correct class.
  void start_from_loss(std::span<const int> labels) {
    Layer& last = layers_.back();
    last.delta = last.output;
    const float share = 1.0f / static_cast<float>(labels.size());
    for (std::size_t row = 0; row < labels.size(); ++row) {
      const auto scores = std::span(last.delta).subspan(row * classes, classes);
      const float highest = *std::max_element(scores.begin(), scores.end());
      float sum = 0;
      for (float& score : scores) sum += score = std::exp(score - highest);
      for (float& score : scores) score *= share / sum;
      scores[static_cast<std::size_t>(labels[row])] -= share;
    }
  }

  std::vector<Layer> layers_;
  std::vector<float> weights_, gradients_;
};

}  // namespace digits
