// models_speech.cc: a recognizer of speech: frames in, logits of characters out, for CTC.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/answers.h"
#include "apps/train/models_zoo.h"

namespace thinwire::train {
namespace {

namespace nn = torch::nn;
using nn::utils::rnn::PackedSequence;

// After Deep Speech 2 (Amodei et al. 2015): a convolution over 11 frames, at every second one, and
// five bidirectional recurrent layers whose directions are added. The norms are over the features
// of one frame instead of the batch, so that utterances do not see each other.
class Recognizer : public Model {
 public:
  explicit Recognizer(const Problem& problem)
      : stem_(register_module(
            "stem",
            nn::Conv1d(nn::Conv1dOptions(problem.channels, width, 11).stride(2).padding(5)))),
        dropout_(register_module("dropout", nn::Dropout(0.2))),
        decoder_(register_module("decoder", nn::Linear(width, problem.classes))) {
    for (int i = 1; i <= layers; ++i) {
      const std::string number = std::to_string(i);
      norms_.push_back(
          register_module("norm" + number, nn::LayerNorm(nn::LayerNormOptions({width}))));
      lstms_.push_back(register_module(
          "lstm" + number,
          nn::LSTM(nn::LSTMOptions(width, width).bidirectional(true).batch_first(true))));
    }
  }

  torch::Tensor forward(const torch::Tensor& input) override {
    return logits(input, torch::full({input.size(0)}, input.size(1), torch::kInt64));
  }

  torch::Tensor answer(const Batch& batch) override { return logits(batch.input, batch.frames); }

 private:
  static constexpr std::int64_t width = 256;
  static constexpr int layers = 5;

  // Zeros follow each utterance, as the convolution puts them after the longest one; packed layers
  // see no others.
  torch::Tensor logits(const torch::Tensor& input, const torch::Tensor& frames) {
    const torch::Tensor heard = torch::relu(stem_->forward(input.transpose(1, 2))).transpose(1, 2);
    const torch::Tensor answers = (frames + 1).div(2, "floor");
    PackedSequence packed = nn::utils::rnn::pack_padded_sequence(heard, answers, true);
    for (std::size_t i = 0; i < lstms_.size(); ++i) packed = layer(i, packed);
    const auto padded = nn::utils::rnn::pad_packed_sequence(packed, true);
    return decoder_->forward(std::get<0>(padded));
  }

  PackedSequence layer(std::size_t i, const PackedSequence& input) {
    const auto with = [&input](const torch::Tensor& data) {
      return PackedSequence(data, input.batch_sizes());
    };
    const torch::Tensor normed = dropout_->forward(norms_[i]->forward(input.data()));
    const PackedSequence both = std::get<0>(lstms_[i]->forward_with_packed_input(with(normed)));
    return with(both.data().view({-1, 2, width}).sum(1));
  }

  nn::Conv1d stem_;
  std::vector<nn::LayerNorm> norms_;
  std::vector<nn::LSTM> lstms_;
  nn::Dropout dropout_;
  nn::Linear decoder_;
};

}  // namespace

std::shared_ptr<Model> make_recognizer(const Problem& problem) {
  return std::make_shared<Recognizer>(problem);
}

}  // namespace thinwire::train
