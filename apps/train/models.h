// models.h: the networks that `thinwire train` knows, in libtorch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn.h>
#include <torch/utils.h>

#include <memory>
#include <string>
#include <vector>

#include "apps/train/domain.h"

namespace thinwire::train {

// The task of a model. It comes from the data.
struct Problem {
  Domain domain = Domain::images;
  int64_t channels = 1, height = 8, width = 8;  // of an image; channels also of a frame of speech
  int64_t classes = 10;                         // or tokens in the vocabulary, or characters
};

struct Batch {
  torch::Tensor input;   // images f32 [N, C, H, W], tokens i64 [N, T], or frames f32 [N, T, C]
  torch::Tensor target;  // classes i64 [N], tokens i64 [N, T], or characters i64 [N, L]
  // Of speech: the lengths of each utterance, i64 [N] on the host, longest first. Then zeros.
  torch::Tensor frames = {}, characters = {};
};

// forward(): images [N, C, H, W] -> logits [N, classes]; tokens [N, T] -> logits [N, T, classes];
// frames [N, T, C] -> logits [N, answers_of(T), classes].
class Model : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(const torch::Tensor& input) = 0;
  // The same for examples of different lengths: what follows an example does not change its logits.
  virtual torch::Tensor answer(const Batch& batch) { return forward(batch.input); }
};

struct ModelInfo {
  std::string name;
  std::string help;  // one line
  Domain domain = Domain::images;
  std::string data;    // data it was made for, or noise of that size
  bool large = false;  // a CPU needs seconds for a step of a few examples
};
const std::vector<ModelInfo>& models();

// Weights follow from `seed` alone. Throws an Error for an unknown name (and lists the known ones),
// and for a model that does not fit the problem (an image model on text, an image too small for
// it). The error says what would fit.
std::shared_ptr<Model> make_model(const std::string& name, const Problem& problem, uint64_t seed);

}  // namespace thinwire::train
