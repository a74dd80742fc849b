// speech_test.cc: loss and words of CTC, utterances of different lengths, AN4's files, and that the
// model learns.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "apps/train/answers.h"
#include "apps/train/data.h"
#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

namespace fs = std::filesystem;

using Characters = std::vector<std::int64_t>;

// Logits that are sure of one class per answer.
torch::Tensor sure_of(const Characters& path, std::int64_t classes) {
  return 20 * torch::one_hot(torch::tensor(path), classes).to(torch::kFloat);
}

Batch utterances(const torch::Tensor& input, const torch::Tensor& target, const Characters& frames,
                 const Characters& characters) {
  return {input, target, torch::tensor(frames), torch::tensor(characters)};
}

// ---- answers

TEST(Answers, TheBestPathDropsRepetitionsAndThenBlanks) {
  EXPECT_EQ(best_path(sure_of({0, 2, 2, 0, 2, 3, 3, 1, 0, 1, 4}, 5)),
            (Characters{2, 2, 3, 1, 1, 4}));
  EXPECT_EQ(best_path(sure_of({0, 0}, 5)), Characters{});
}

TEST(Answers, WordErrorsAreInsertionsRemovalsAndReplacements) {
  const Characters one_two = {2, 3, space, 4};
  EXPECT_EQ(word_errors(one_two, one_two), 0);
  EXPECT_EQ(word_errors(one_two, {space, 2, 3, space, space, 4, space}), 0);
  EXPECT_EQ(word_errors(one_two, {2, space, 4}), 1);
  EXPECT_EQ(word_errors(one_two, {4}), 1);
  EXPECT_EQ(word_errors(one_two, {2, 3, space, 5, space, 4}), 1);
  EXPECT_EQ(word_errors(one_two, {}), 2);
  EXPECT_EQ(word_errors(one_two, {4, space, 2, 3}), 2);
  EXPECT_EQ(word_errors({}, one_two), 2);
}

TEST(Answers, TheLossIsThatOfAllPathsTogether) {
  // Two answers, target "2": the paths 22, 2-, -2.
  const torch::Tensor logits = torch::randn({1, 2, 3});
  const torch::Tensor p = torch::softmax(logits[0], -1);
  const double all = (p[0][2] * p[1][2] + p[0][2] * p[1][0] + p[0][0] * p[1][2]).item<double>();
  const Batch batch = utterances({}, torch::tensor({{2L}}), {4}, {1});
  EXPECT_NEAR(loss_of(Domain::speech, logits, batch).item<double>(), -std::log(all), 1e-6);
}

TEST(Answers, PaddingChangesNeitherLossNorWords) {
  const torch::Tensor target = torch::tensor({{2L, 1L, 3L}, {4L, 0L, 0L}});
  const Batch batch = utterances({}, target, {11, 3}, {3, 1});
  torch::Tensor logits =
      torch::stack({sure_of({0, 2, 1, 3, 3, 0}, 5), sure_of({4, 0, 2, 1, 3, 3}, 5)});
  const Count count = count_answers(Domain::speech, logits, batch);
  EXPECT_EQ(count.examples, 2);
  EXPECT_EQ(count.questions, 3);
  EXPECT_EQ(count.right, 3);
  logits[1].slice(0, 2).random_(0, 30);
  const Count again = count_answers(Domain::speech, logits, batch);
  EXPECT_EQ(again.loss, count.loss);
  EXPECT_EQ(again.right, 3);
}

TEST(Answers, MoreWrongWordsThanWordsCountBelowZero) {
  const Batch batch = utterances({}, torch::tensor({{2L}}), {6}, {1});
  const Count count = count_answers(Domain::speech, sure_of({3, 1, 4}, 5).unsqueeze(0), batch);
  EXPECT_EQ(count.right, -1);
  EXPECT_EQ(count.questions, 1);
}

// ---- the model

TEST(Speech, AnUtteranceDoesNotSeeTheOthersOfItsBatch) {
  const torch::NoGradGuard no_gradients;
  const auto data = open_data("tones", 1);
  const auto model = make_model("speech", data->problem(), 1);
  model->eval();
  const Batch batch = data->test_batch(0, 5);
  const torch::Tensor together = model->answer(batch);
  for (std::int64_t i = 0; i < 5; ++i) {
    const auto frames = batch.frames[i].item<std::int64_t>();
    const torch::Tensor alone = model->forward(batch.input.narrow(0, i, 1).narrow(1, 0, frames));
    ASSERT_EQ(alone.size(1), answers_of(frames));
    EXPECT_TRUE(torch::allclose(together[i].slice(0, 0, answers_of(frames)), alone[0], 1e-4, 1e-5))
        << i;
  }
}

TEST(Speech, IsLearned) {
  torch::manual_seed(1);
  const Problem problem{Domain::speech, 13, 1, 1, 5};
  const auto model = make_model("speech", problem, 1);
  torch::Tensor input = torch::randn({2, 16, 13});
  input[1].slice(0, 12).zero_();
  const Batch batch =
      utterances(input, torch::tensor({{2L, 1L, 3L}, {4L, 2L, 0L}}), {16, 12}, {3, 2});
  double first = 0, last = 0;
  for (int step = 0; step < 40 && (step == 0 || last > 0.05); ++step) {
    model->zero_grad();
    const torch::Tensor loss = loss_of(Domain::speech, model->answer(batch), batch);
    loss.backward();
    last = loss.item<double>();
    if (step == 0) first = last;
    const torch::NoGradGuard no_gradients;
    for (auto& weight : model->parameters()) weight.sub_(weight.grad().sign(), 0.001);
  }
  model->eval();
  const torch::NoGradGuard no_gradients;
  EXPECT_LT(last, first / 5);
  EXPECT_EQ(count_answers(Domain::speech, model->answer(batch), batch).right, 3);
}

// ---- data

TEST(Tones, ComeLongestFirstWithTheirLengths) {
  const auto data = open_data("tones", 1);
  EXPECT_EQ(data->train_examples(), 512);
  EXPECT_EQ(data->test_batches(60), 2);
  EXPECT_EQ(data->problem().domain, Domain::speech);
  EXPECT_EQ(data->problem().classes, 8);
  const Batch batch = data->train_batch(1, 3, 0, 2, 16), same = data->train_batch(1, 3, 0, 2, 16);
  EXPECT_TRUE(torch::equal(batch.input, same.input));
  EXPECT_EQ(batch.input.size(1), batch.frames[0].item<std::int64_t>());
  EXPECT_EQ(batch.target.size(1), batch.characters.max().item<std::int64_t>());
  for (std::int64_t i = 0; i < 16; ++i) {
    const auto frames = batch.frames[i].item<std::int64_t>();
    EXPECT_LE(frames, batch.frames[std::max<std::int64_t>(0, i - 1)].item<std::int64_t>());
    EXPECT_NEAR(batch.input[i].slice(0, 0, frames).mean().item<double>(), 0, 1e-5);
    EXPECT_EQ(batch.input[i].slice(0, frames).abs().sum().item<double>(), 0);
    const torch::Tensor rest = batch.target[i].slice(0, batch.characters[i].item<std::int64_t>());
    EXPECT_EQ(rest.sum().item<std::int64_t>(), 0);
  }
}

// A folder like AN4's with three utterances to learn and two to test.
class An4 : public testing::Test {
 protected:
  An4() {
    std::string name = testing::TempDir() + "thinwire_an4_XXXXXX";
    path_ = mkdtemp(name.data());
    for (const char* folder : {"/etc", "/feat/a/x", "/feat/b/y"})
      fs::create_directories(path_ + folder);
    write("etc/an4_train.fileids", "a/x/one\na/x/two\na/x/three\n");
    write("etc/an4_train.transcription",
          "<s> YES NO </s> (one)\nGO (two)\r\n<s> A  B </s> (three)\n");
    write("etc/an4_test.fileids", "b/y/four\nb/y/five\n");
    write("etc/an4_test.transcription", "NO (four)\nGO ON (five)\n");
    for (const char* each : {"a/x/one", "a/x/two", "a/x/three", "b/y/four", "b/y/five"})
      write(std::string("feat/") + each + ".mfc", cepstra(++frames_));
  }
  ~An4() override { fs::remove_all(path_); }

  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << content;
  }

  static std::string big_endian(std::uint32_t value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
    return bytes;
  }

  // Values 1, 2, 3, ... of which one may be another.
  static std::string cepstra(std::uint32_t frames, float odd = 0) {
    std::string bytes = big_endian(13 * frames);
    for (std::uint32_t i = 1; i <= 13 * frames; ++i) {
      const float value = i == 20 && odd != 0 ? odd : static_cast<float>(i);
      bytes += big_endian(std::bit_cast<std::uint32_t>(value));
    }
    return bytes;
  }

  std::string error() const {
    try {
      open_data("an4:" + path_, 1);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  void expect_error(const std::string& part) const {
    EXPECT_NE(error().find(part), std::string::npos) << "got: " << error() << "\nwanted: " << part;
  }

  std::string path_;
  std::uint32_t frames_ = 20;
};

TEST_F(An4, IsRead) {
  const auto data = open_data("an4:" + path_, 1);
  EXPECT_EQ(data->train_examples(), 3);
  EXPECT_EQ(data->problem().channels, 13);
  EXPECT_EQ(data->problem().classes, 2 + 8);  // A B E G N O S Y
  const Batch test = data->test_batch(0, 2);
  EXPECT_TRUE(torch::equal(test.frames, torch::tensor({25L, 24L})));
  EXPECT_TRUE(torch::equal(test.characters, torch::tensor({5L, 2L})));
  EXPECT_TRUE(
      torch::equal(test.target, torch::tensor({{5L, 7L, 1L, 7L, 6L}, {6L, 7L, 0L, 0L, 0L}})));
  // Each channel rises by 13 per frame; scaled, the steps are equal.
  const torch::Tensor channel = test.input[1].slice(0, 0, 24).select(1, 4);
  EXPECT_NEAR(channel.mean().item<double>(), 0, 1e-6);
  EXPECT_NEAR(channel.square().mean().item<double>(), 1, 1e-5);
  EXPECT_NEAR((channel[1] - channel[0]).item<double>(), (channel[23] - channel[22]).item<double>(),
              1e-5);
}

TEST_F(An4, SaysWhatIsWrongWithAFile) {
  const std::string feature = "feat/a/x/two.mfc", at = "'" + path_ + "/" + feature + "'";
  write(feature, cepstra(22).substr(0, 500));
  expect_error(at + " has 496 bytes of values, but its header announces 286 values of 4");
  write(feature, big_endian(std::uint32_t{0x61000000}) + "not speech..");
  expect_error(at + " has 12 bytes of values, but its header announces 1627389952 values");
  write(feature, "abc");
  expect_error(at + " has 3 bytes, expected a header of 4");
  write(feature, big_endian(0));
  expect_error(at + " has 0 values, expected a multiple of 13");
  write(feature, big_endian(12) + std::string(48, '\0'));
  expect_error(at + " has 12 values, expected a multiple of 13");
  write(feature, cepstra(22, std::numeric_limits<float>::infinity()));
  expect_error(at + ", value 20: expected a finite number");
  fs::remove(path_ + "/" + feature);
  expect_error("there is no file " + at);
}

TEST_F(An4, SaysWhatIsWrongWithTheLists) {
  const std::string words = "etc/an4_test.transcription";
  write(words, "GO ON (five)\nNO (four)\n");
  expect_error("line 1: expected words and then '(four)', got 'GO ON (five)'");
  write(words, "NO (four)\n");
  expect_error("has 2 utterances");
  write(words, "\n\n");
  expect_error("is empty");
  write(words, "NO (four)\n<s> </s> (five)\n");
  expect_error("utterance 'b/y/five' has no words");
  write(words, "NO (four)\nEVERYTHING TAKES TIME (five)\n");
  expect_error("utterance 'b/y/five' has 25 frames, but 'EVERYTHING TAKES TIME' needs 41");
  fs::remove(path_ + "/" + words);
  expect_error("expected the folder of AN4 with cepstra");
}

// 13 answers are enough for 12 characters of which two neighbours are equal, 12 are not.
TEST_F(An4, CountsAnAnswerBetweenEqualCharacters) {
  write("etc/an4_test.transcription", "NO (four)\nABCDEFGHIJKK (five)\n");
  EXPECT_EQ(error(), "no error");
  write("etc/an4_test.transcription", "ABCDEFGHIJKK (four)\nGO (five)\n");
  expect_error("utterance 'b/y/four' has 24 frames, but 'ABCDEFGHIJKK' needs 25");
}

}  // namespace
}  // namespace thinwire::train
