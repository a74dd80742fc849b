// answers.h: how wrong a model's answers are: the loss that training minimizes, and the count of
// right answers that people compare.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn.h>
#include <torch/utils.h>

#include <vector>

#include "apps/train/models.h"

namespace thinwire::train {

// The first classes of speech: no character (CTC's blank), and the end of a word.
inline constexpr int64_t blank = 0, space = 1;

// A model of speech gives one answer per two frames.
constexpr int64_t answers_of(int64_t frames) { return (frames + 1) / 2; }

// The mean over images or tokens. Of speech: CTC's loss per character, the mean over utterances. It
// is computed on the CPU, where its gradient has the same bits in every run.
torch::Tensor loss_of(Domain domain, const torch::Tensor& logits, const Batch& batch);

// Sums over a batch.
struct Count {
  double loss = 0, examples = 0;    // examples are images, tokens or utterances
  double right = 0, questions = 0;  // questions of speech are words
};
Count count_answers(Domain domain, const torch::Tensor& logits, const Batch& batch);

// What the answers [T, classes] to one utterance spell: the most likely class of each, without
// repetitions and blanks.
std::vector<int64_t> best_path(const torch::Tensor& logits);

// The words that must be inserted, removed or replaced to make one text into the other.
int64_t word_errors(const std::vector<int64_t>& expected, const std::vector<int64_t>& got);

}  // namespace thinwire::train
