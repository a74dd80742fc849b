// answers.cc: cross entropy and shares of right answers; of speech CTC's loss and word errors.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/answers.h"

#include <algorithm>
#include <numeric>

namespace thinwire::train {
namespace {

using Text = std::vector<std::int64_t>;

torch::Tensor cross_entropy(const torch::Tensor& logits, const torch::Tensor& target) {
  const torch::Tensor rows = logits.reshape({-1, logits.size(-1)}).to(torch::kFloat);
  return torch::nn::functional::cross_entropy(rows, target.reshape({-1}));
}

torch::Tensor ctc(const torch::Tensor& logits, const Batch& batch) {
  const torch::Tensor likely = torch::log_softmax(logits.to(torch::kFloat), -1).transpose(0, 1);
  const torch::Tensor answers = (batch.frames + 1).div(2, "floor");
  return torch::ctc_loss(likely.cpu(), batch.target.cpu(), answers, batch.characters, blank,
                         at::Reduction::Mean);
}

std::vector<Text> divided(const Text& text) {
  std::vector<Text> words(1);
  for (const std::int64_t character : text) {
    if (character == space) {
      words.emplace_back();
    } else {
      words.back().push_back(character);
    }
  }
  std::erase_if(words, [](const Text& word) { return word.empty(); });
  return words;
}

Text text_of(const torch::Tensor& values) {
  const torch::Tensor whole = values.to(torch::kCPU, torch::kInt64).contiguous();
  const auto* first = whole.data_ptr<std::int64_t>();
  return {first, first + whole.numel()};
}

Count count_words(const torch::Tensor& logits, const Batch& batch) {
  const std::int64_t utterances = logits.size(0);
  const auto examples = static_cast<double>(utterances);
  Count count{ctc(logits, batch).item<double>() * examples, examples, 0, 0};
  const torch::Tensor heard = logits.cpu(), said = batch.target.cpu();
  for (std::int64_t i = 0; i < utterances; ++i) {
    const auto frames = batch.frames[i].item<std::int64_t>();
    const auto characters = batch.characters[i].item<std::int64_t>();
    const Text expected = text_of(said[i].slice(0, 0, characters));
    const auto words = static_cast<double>(divided(expected).size());
    const Text got = best_path(heard[i].slice(0, 0, answers_of(frames)));
    count.right += words - static_cast<double>(word_errors(expected, got));
    count.questions += words;
  }
  return count;
}

}  // namespace

torch::Tensor loss_of(Domain domain, const torch::Tensor& logits, const Batch& batch) {
  return domain == Domain::speech ? ctc(logits, batch) : cross_entropy(logits, batch.target);
}

Count count_answers(Domain domain, const torch::Tensor& logits, const Batch& batch) {
  if (domain == Domain::speech) return count_words(logits, batch);
  const auto questions = static_cast<double>(batch.target.numel());
  return {cross_entropy(logits, batch.target).item<double>() * questions, questions,
          logits.argmax(-1).eq(batch.target).sum().item<double>(), questions};
}

std::vector<std::int64_t> best_path(const torch::Tensor& logits) {
  Text path = text_of(logits.argmax(-1));
  path.erase(std::unique(path.begin(), path.end()), path.end());
  std::erase(path, blank);
  return path;
}

// Levenshtein's distance, with one row of his table at a time.
std::int64_t word_errors(const Text& expected, const Text& got) {
  const std::vector<Text> wanted = divided(expected), found = divided(got);
  std::vector<std::int64_t> row(found.size() + 1);
  std::iota(row.begin(), row.end(), std::int64_t{0});
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    std::int64_t diagonal = row[0]++;
    for (std::size_t j = 0; j < found.size(); ++j) {
      const std::int64_t replaced = diagonal + (wanted[i] == found[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace thinwire::train
