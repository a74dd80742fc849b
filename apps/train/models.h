// models.h: the networks that `thinwire train` knows, in libtorch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn.h>
#include <torch/utils.h>

#include <memory>
#include <string>
#include <vector>

namespace thinwire::train {

// The task of a model. It comes from the data.
struct Problem {
  bool language = false;  // tokens in, next token out; otherwise images in, class out
  int64_t channels = 1, height = 8, width = 8;  // of an image
  int64_t classes = 10;                         // or tokens in the vocabulary
};

// forward(): images [N, C, H, W] -> logits [N, classes]; tokens [N, T] -> logits [N, T, classes].
class Model : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(const torch::Tensor& input) = 0;
};

struct ModelInfo {
  std::string name;
  std::string help;  // one line
  bool language = false;
  std::string data;    // data it was made for, or noise of that size
  bool large = false;  // a CPU needs seconds for a step of a few examples
};
const std::vector<ModelInfo>& models();

// Weights follow from `seed` alone. Throws an Error for an unknown name (and lists the known ones),
// and for a model that does not fit the problem (an image model on text, an image too small for
// it). The error says what would fit.
std::shared_ptr<Model> make_model(const std::string& name, const Problem& problem, uint64_t seed);

}  // namespace thinwire::train
