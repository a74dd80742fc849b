// data_test.cc: which worker sees which example when, readers on files written here, errors.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/data.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>

#include "apps/train/data_order.h"
#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

namespace fs = std::filesystem;

// A folder that is removed with the test.
class Folder : public testing::Test {
 protected:
  Folder() {
    std::string name = testing::TempDir() + "thinwire_data_XXXXXX";
    path_ = mkdtemp(name.data());
  }
  ~Folder() override { fs::remove_all(path_); }

  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << content;
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

class Text : public Folder {};
class Digits : public Folder {};

std::string error_of(const std::string& spec, std::int64_t sequence = 4) {
  try {
    open_data(spec, sequence);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

#define EXPECT_SAYS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "got: " << (text) << "\nwanted: " << (part)

void expect_equal(const Batch& a, const Batch& b) {
  EXPECT_TRUE(torch::equal(a.input, b.input));
  EXPECT_TRUE(torch::equal(a.target, b.target));
}

// ---- the order

TEST(Order, IsAPermutationOfEveryLength) {
  for (const std::uint64_t count : {1u, 2u, 3u, 4u, 5u, 15u, 16u, 17u, 63u, 64u, 65u, 1000u}) {
    for (const std::uint64_t key : {0u, 1u, 99u}) {
      std::set<std::uint64_t> seen;
      for (std::uint64_t i = 0; i < count; ++i) seen.insert(permuted(key, i, count));
      EXPECT_EQ(seen.size(), count);
      EXPECT_LT(*seen.rbegin(), count);
    }
  }
}

TEST(Order, SpreadsEveryPlaceEvenly) {
  // How often position 0 gets each of 10 examples over many keys: 1000, within five deviations.
  std::vector<int> times(10);
  for (std::uint64_t key = 0; key < 10'000; ++key) {
    ++times[permuted(random_at(5, key), 0, times.size())];
  }
  for (const int n : times) EXPECT_NEAR(n, 1000, 150);
}

TEST(Order, ShowsEveryExampleOncePerEpoch) {
  constexpr std::int64_t examples = 103, batch = 5;
  constexpr int world = 4;
  constexpr std::uint64_t rounds = 103 / (4 * 5);
  std::vector<std::vector<std::int64_t>> epochs;
  for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<std::int64_t> all;
    for (std::uint64_t round = 0; round < rounds; ++round) {
      for (int rank = 0; rank < world; ++rank) {
        for (const auto i : batch_examples(examples, 3, epoch * rounds + round, rank, world, batch))
          all.push_back(i);
      }
    }
    const std::set<std::int64_t> distinct(all.begin(), all.end());
    EXPECT_EQ(distinct.size(), std::size_t{100});
    EXPECT_GE(*distinct.begin(), 0);
    EXPECT_LT(*distinct.rbegin(), examples);
    epochs.push_back(all);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(batch_examples(examples, 3, 0, 0, world, batch),
            batch_examples(examples, 4, 0, 0, world, batch));
}

TEST(Order, IsTheSameOnEveryMachine) {
  EXPECT_EQ(batch_examples(1000, 1, 0, 0, 1, 4), (std::vector<std::int64_t>{552, 692, 597, 954}));
  EXPECT_EQ(batch_examples(1797, 42, 1000, 3, 4, 4),
            (std::vector<std::int64_t>{1561, 1219, 894, 1430}));
}

TEST(Order, RefusesABatchLargerThanTheData) {
  try {
    batch_examples(100, 1, 0, 1, 2, 51);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "rank 1: one step takes a batch of 51 on each of 2 workers, but the training data has "
        "only 100 examples; use a smaller batch or fewer workers");
  }
  EXPECT_NO_THROW(batch_examples(100, 1, 0, 1, 2, 50));
  EXPECT_THROW(batch_examples(100, 1, 0, 2, 2, 1), Error);
  EXPECT_THROW(batch_examples(100, 1, 0, 0, 1, 0), Error);
}

// ---- images

TEST_F(Digits, AreReadAndSplitAndNormalised) {
  if (!fs::exists(THINWIRE_SOURCE_DIR "/data/digits.csv")) GTEST_SKIP() << "run make setup";
  const auto data = open_data("digits", 1);
  EXPECT_EQ(data->train_examples(), 1438);
  EXPECT_EQ(data->problem().classes, 10);
  EXPECT_EQ(data->test_batches(100), 4);
  EXPECT_EQ(data->test_batch(3, 100).target.size(0), 59);
  const Batch all = data->train_batch(1, 0, 0, 1, 1438);
  EXPECT_EQ(all.input.sizes().vec(), (std::vector<std::int64_t>{1438, 1, 8, 8}));
  EXPECT_NEAR(all.input.mean().item<float>(), 0, 1e-5);
  EXPECT_NEAR(all.input.var().item<float>(), 1, 1e-4);
  EXPECT_EQ(all.target.min().item<int>(), 0);
  EXPECT_EQ(all.target.max().item<int>(), 9);
  EXPECT_THROW(data->test_batch(4, 100), Error);
  EXPECT_THROW(data->test_batches(0), Error);
}

TEST_F(Digits, SayWhatIsWrongWithTheFile) {
  const auto with = [&](const std::string& content) {
    setenv("THINWIRE_DIGITS", write("digits.csv", content).c_str(), 1);
    std::string text = error_of("digits");
    unsetenv("THINWIRE_DIGITS");
    return text;
  };
  std::string row;
  for (int i = 0; i < 64; ++i) row += "16,";
  EXPECT_SAYS(with(row + "9\n"), "has 1 images, expected 1797; remove it and run `make setup`");
  EXPECT_SAYS(with(row + "9\n1,2,3\n"), "line 2: expected 64 pixels and a label, got 3 numbers");
  EXPECT_SAYS(with(row + "10\n"), "line 1, number 65: expected 0 to 9, got 10");
  setenv("THINWIRE_DIGITS", (path() + "/none.csv").c_str(), 1);
  EXPECT_SAYS(error_of("digits"), "none.csv'; `make setup` writes");
  unsetenv("THINWIRE_DIGITS");
}

// A record whose first pixel is `mark` and whose others are 0, in all channels.
std::string cifar_record(int label, int mark) {
  std::string record(3073, '\0');
  record[0] = static_cast<char>(label);
  for (const std::size_t plane : {0u, 1u, 2u}) record[1 + plane * 1024] = static_cast<char>(mark);
  return record;
}

class CifarFiles : public Folder {
 protected:
  CifarFiles() {
    for (int file = 1; file <= 5; ++file) {
      write("data_batch_" + std::to_string(file) + ".bin",
            cifar_record(file, 40 * file) + cifar_record(file + 1, 40 * file + 20));
    }
    write("test_batch.bin", cifar_record(3, 255));
  }
  std::string spec() const { return "cifar10:" + path(); }
};

TEST_F(CifarFiles, AreRead) {
  const auto data = open_data(spec(), 1);
  EXPECT_EQ(data->train_examples(), 10);
  const Batch test = data->test_batch(0, 8);
  EXPECT_EQ(test.input.sizes().vec(), (std::vector<std::int64_t>{1, 3, 32, 32}));
  EXPECT_EQ(test.target.item<int>(), 3);
  // The mark is where it was written, in each channel.
  for (int channel = 0; channel < 3; ++channel) {
    EXPECT_EQ(test.input[0][channel].argmax().item<int>(), 0);
  }
}

TEST_F(CifarFiles, AugmentationFollowsFromSeedStepRankAndPosition) {
  const auto data = open_data(spec(), 1), again = open_data(spec(), 1);
  expect_equal(data->train_batch(1, 7, 0, 2, 5), again->train_batch(1, 7, 0, 2, 5));
  // The whole data in one step on one worker: equal examples, different views.
  std::set<int> places;
  bool mirrored = false, straight = false;
  for (std::uint64_t step = 0; step < 200; ++step) {
    const Batch batch = data->train_batch(1, step, 0, 1, 10);
    for (int i = 0; i < 10; ++i) {
      const torch::Tensor plane = batch.input[i][0];
      if (plane.max().item<float>() <= plane.min().item<float>()) continue;  // moved out of sight
      const int at = plane.argmax().item<int>();
      places.insert(at);
      (at % 32 > 15 ? mirrored : straight) = true;
      ASSERT_LE(at / 32, 4);
    }
  }
  // The mark in the corner appears in 5 rows and, with mirroring, 10 columns.
  EXPECT_EQ(places.size(), std::size_t{50});
  EXPECT_TRUE(mirrored && straight);
}

TEST_F(CifarFiles, TheTestIsNotAugmented) {
  const auto data = open_data(spec(), 1);
  expect_equal(data->test_batch(0, 1), data->test_batch(0, 1));
}

TEST_F(CifarFiles, SayWhatIsWrong) {
  write("data_batch_4.bin", cifar_record(1, 1).substr(0, 3000));
  EXPECT_SAYS(error_of(spec()), "data_batch_4.bin' has 3000 bytes, expected a multiple of 3073");
  write("data_batch_4.bin", cifar_record(1, 1) + cifar_record(10, 1));
  EXPECT_SAYS(error_of(spec()), "record 1: expected a label from 0 to 9, got 10");
  fs::remove(path() + "/data_batch_4.bin");
  EXPECT_SAYS(error_of(spec()), "data_batch_4.bin'; unpack cifar-10");
  EXPECT_SAYS(error_of("cifar10:" + path() + "/none"), "/none' does not exist; unpack cifar-10");
  EXPECT_SAYS(error_of("cifar10:" + path() + "/test_batch.bin"), "is not a directory");
}

TEST_F(CifarFiles, AreFoundInTheFolderOfTheArchive) {
  fs::create_directory(path() + "/outer");
  fs::create_directory_symlink(path(), path() + "/outer/cifar-10-batches-bin");
  EXPECT_EQ(open_data("cifar10:" + path() + "/outer", 1)->train_examples(), 10);
}

std::string big_endian(std::initializer_list<std::uint32_t> numbers) {
  std::string bytes;
  for (const std::uint32_t n : numbers) {
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(n >> shift & 0xff);
  }
  return bytes;
}

class IdxFiles : public Folder {
 protected:
  // Twelve images of 2x3, the i-th all of value i, of class i % 4.
  IdxFiles() {
    std::string pixels, labels;
    for (int i = 0; i < 12; ++i) {
      pixels += std::string(6, static_cast<char>(i));
      labels += static_cast<char>(i % 4);
    }
    write("train-images-idx3-ubyte", big_endian({0x803, 12, 2, 3}) + pixels);
    write("train-labels-idx1-ubyte", big_endian({0x801, 12}) + labels);
    write("t10k-images.idx3-ubyte", big_endian({0x803, 2, 2, 3}) + pixels.substr(0, 12));
    write("t10k-labels.idx1-ubyte", big_endian({0x801, 2}) + labels.substr(0, 2));
  }
  std::string spec() const { return "idx:" + path(); }
};

TEST_F(IdxFiles, AreReadUnderEitherName) {
  const auto data = open_data(spec(), 1);
  const Problem problem = data->problem();
  EXPECT_EQ(data->train_examples(), 12);
  EXPECT_EQ(problem.height, 2);
  EXPECT_EQ(problem.width, 3);
  EXPECT_EQ(problem.classes, 4);
  // Values 0 to 11: mean 5.5, variance 143 / 12.
  const Batch test = data->test_batch(0, 2);
  EXPECT_NEAR(test.input[0][0][1][2].item<float>(), -5.5 / std::sqrt(143.0 / 12), 1e-6);
  EXPECT_EQ(test.target[1].item<int>(), 1);
}

TEST_F(IdxFiles, EveryImageComesOncePerEpochWithItsLabel) {
  const auto data = open_data(spec(), 1);
  std::set<float> seen;
  for (std::uint64_t step = 0; step < 2; ++step) {
    for (int rank = 0; rank < 3; ++rank) {
      const Batch batch = data->train_batch(9, step, rank, 3, 2);
      expect_equal(batch, data->train_batch(9, step, rank, 3, 2));
      for (int i = 0; i < 2; ++i) {
        const float value = batch.input[i][0][0][0].item<float>();
        const auto example = std::lround(value * std::sqrt(143.0 / 12) + 5.5);
        EXPECT_EQ(batch.target[i].item<long>(), example % 4);
        EXPECT_TRUE(seen.insert(value).second);
      }
    }
  }
  EXPECT_EQ(seen.size(), std::size_t{12});
}

TEST_F(IdxFiles, SayWhatIsWrong) {
  const std::string images = "train-images-idx3-ubyte";
  write(images, big_endian({0x803, 12, 2, 3}) + std::string(71, '\0'));
  EXPECT_SAYS(error_of(spec()),
              images + "' has 71 bytes of values, but its header announces 12 images of 2x3");
  write(images, big_endian({0x803, 0xffffffff, 0xffffffff, 0xffffffff}) + std::string(71, '\0'));
  EXPECT_SAYS(error_of(spec()), "truncated or damaged");
  write(images, big_endian({0x803, 0, 2, 3}));
  EXPECT_SAYS(error_of(spec()), "announces 0 images");
  write(images, big_endian({0x803, 12}));
  EXPECT_SAYS(error_of(spec()), "has 8 bytes, expected a header of 16");
  write(images, big_endian({0x801, 12, 2, 3}) + std::string(72, '\0'));
  EXPECT_SAYS(error_of(spec()), "begins with the number 2049, expected 2051");
  write(images, big_endian({0x803, 11, 2, 3}) + std::string(66, '\0'));
  EXPECT_SAYS(error_of(spec()), "has 11 images, '");
  fs::rename(path() + "/" + images, path() + "/" + images + ".gz");
  EXPECT_SAYS(error_of(spec()), "is still compressed; run `gunzip ");
  fs::remove(path() + "/" + images + ".gz");
  EXPECT_SAYS(error_of(spec()), "there is no file '");
  EXPECT_SAYS(error_of("idx:/nowhere"), "directory '/nowhere' does not exist");
}

TEST_F(IdxFiles, MustBelongTogether) {
  write("t10k-labels.idx1-ubyte", big_endian({0x801, 2}) + std::string(2, '\x07'));
  EXPECT_SAYS(
      error_of(spec()),
      "t10k-labels.idx1-ubyte': the label at index 0 is 7, the training labels go only up to");
  write("t10k-images.idx3-ubyte", big_endian({0x803, 2, 1, 3}) + std::string(6, '\0'));
  EXPECT_SAYS(error_of(spec()), "training images are 2x3, test images 1x3");
  const std::string labels("\0\1\2\3\0\1\2\310\0\1\2\3", 12);  // one of 200
  write("train-labels-idx1-ubyte", big_endian({0x801, 12}) + labels);
  write("t10k-images.idx3-ubyte", big_endian({0x803, 2, 2, 3}) + std::string(12, '\0'));
  EXPECT_SAYS(error_of(spec()),
              "train-labels-idx1-ubyte': the label at index 7 is 200, but the file has only 5");
}

TEST(Synthetic, HasTheShapeThatWasAskedFor) {
  const auto data = open_data("synthetic:2x5x7:3", 1);
  EXPECT_EQ(data->train_examples(), 10'000);
  EXPECT_EQ(data->test_batches(1000), 1);
  const Batch batch = data->train_batch(1, 0, 0, 1, 500);
  EXPECT_EQ(batch.input.sizes().vec(), (std::vector<std::int64_t>{500, 2, 5, 7}));
  EXPECT_EQ(batch.target.max().item<int>(), 2);
  EXPECT_NEAR(batch.input.mean().item<float>(), 0, 0.1);
  EXPECT_NEAR(batch.input.var().item<float>(), 1, 0.1);
  expect_equal(batch, open_data("synthetic:2x5x7:3", 1)->train_batch(1, 0, 0, 1, 500));
  EXPECT_EQ(open_data("synthetic", 1)->problem().width, 32);
}

TEST(Synthetic, CanBeLearned) {
  // The mean training image of each class distinguishes the test images.
  const auto data = open_data("synthetic", 1);
  const Batch train = data->train_batch(1, 0, 0, 1, 2000), test = data->test_batch(0, 500);
  const torch::Tensor hot = torch::one_hot(train.target, 10).to(torch::kFloat);
  const torch::Tensor means = hot.t().mm(train.input.flatten(1)) / hot.sum(0).unsqueeze(1);
  const torch::Tensor guess = torch::cdist(test.input.flatten(1), means).argmin(1);
  EXPECT_GT(guess.eq(test.target).to(torch::kFloat).mean().item<float>(), 0.95f);
}

TEST(Synthetic, RefusesWhatItCannotRead) {
  for (const char* argument : {"3", "3x32", "3x32x32", "3x32x32:", "3x32x32:0", "-3x32x32:10",
                               "3x32x32:10x", "ax32x32:10", "3x32x32:99999999999999999999"}) {
    EXPECT_SAYS(error_of(std::string("synthetic:") + argument), "expected CxHxW:CLASSES");
  }
}

// ---- text

TEST_F(Text, WordsAreNumberedByFrequencyAndLinesEnd) {
  fs::create_directory(path() + "/ptb");
  write("ptb/ptb.train.txt", "b a a\n\n  c a\t<unk>\r\n");
  write("ptb/ptb.test.txt", "a new b\n");
  const auto data = open_data("text:" + path() + "/ptb", 3);
  // a: 3, <eos>: 2, then <unk>, b, c with one each.
  EXPECT_EQ(data->problem().classes, 5);
  EXPECT_EQ(data->problem().domain, Domain::text);
  const Batch test = data->test_batch(0, 1);
  EXPECT_TRUE(torch::equal(test.input, torch::tensor({{0L, 2L, 3L}})));
  EXPECT_TRUE(torch::equal(test.target, torch::tensor({{2L, 3L, 1L}})));
  EXPECT_EQ(data->train_examples(), 2);
}

TEST_F(Text, AFileIsSplitByLines) {
  std::string text;
  for (int line = 0; line < 100; ++line) text += "w" + std::to_string(line) + "\n";
  const auto data = open_data("text:" + write("t.txt", text), 1);
  EXPECT_EQ(data->train_examples(), 179);  // 90 words, 90 <eos>, one of them only a target
  EXPECT_EQ(data->test_batches(1), 9);     // 5 words, 5 <eos>
  EXPECT_EQ(data->problem().classes, 92);  // with <eos> and <unk>
}

TEST_F(Text, EverySequenceComesOncePerEpochAndTargetsAreNext) {
  // 103 different words in the training text, in sequences of 5: 20.
  std::string train;
  for (int i = 0; i < 102; ++i) train += "w" + std::to_string(1000 + i) + " ";
  fs::create_directory(path() + "/ptb");
  write("ptb/ptb.train.txt", train);
  write("ptb/ptb.test.txt", train);
  const auto data = open_data("text:" + path() + "/ptb", 5);
  ASSERT_EQ(data->train_examples(), 20);
  std::set<std::int64_t> seen;
  for (std::uint64_t step = 20; step < 25; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      const Batch batch = data->train_batch(2, step, rank, 2, 2);
      expect_equal(batch, data->train_batch(2, step, rank, 2, 2));
      EXPECT_TRUE(torch::equal(batch.input.slice(1, 1), batch.target.slice(1, 0, 4)));
      for (int i = 0; i < 2; ++i) seen.insert(batch.input[i][0].item<std::int64_t>());
    }
  }
  EXPECT_EQ(seen.size(), std::size_t{20});
}

TEST_F(Text, CharactersAreBytes) {
  std::string text;
  for (int i = 0; i < 19; ++i) text += "abc";
  const auto data = open_data("chars:" + write("t.txt", text + "xyz"), 2);  // 57 + 3 bytes
  EXPECT_EQ(data->problem().classes, 6);
  EXPECT_EQ(data->train_examples(), 28);
  EXPECT_TRUE(torch::equal(data->test_batch(0, 1).input, torch::tensor({{3L, 4L}})));
  EXPECT_TRUE(torch::equal(data->test_batch(0, 1).target, torch::tensor({{4L, 5L}})));
}

TEST_F(Text, SaysWhatIsWrong) {
  EXPECT_SAYS(error_of("text:" + path() + "/none"), "there is no file '" + path() + "/none'");
  EXPECT_SAYS(error_of("text:" + path()), "a directory of text holds ptb.train.txt");
  EXPECT_SAYS(error_of("chars:" + path()), "is a directory, expected a file");
  EXPECT_SAYS(error_of("text:" + write("empty.txt", " \n\n")), "is empty, expected text");
  EXPECT_SAYS(error_of("chars:" + write("empty.txt", "")), "is empty, expected text");
  EXPECT_SAYS(error_of("chars:" + write("short.txt", "abcd"), 4),
              "the training text has 4 tokens, a sequence of 4 needs 5; use a shorter sequence");
  EXPECT_SAYS(error_of("chars:" + write("short.txt", "abcdabcdabcdabcdabcd"), 4),
              "the test text has 1 tokens");
  EXPECT_SAYS(error_of("chars:" + write("short.txt", "abcd"), 0), "at least 1 token, got 0");
}

TEST_F(Text, ThePythonLibraryIsLongEnough) {
  if (std::system("python3 -c '' 2>/dev/null") != 0) GTEST_SKIP() << "no python3";
  const auto data = open_data("stdlib", 100);
  EXPECT_GT(data->train_examples(), 10'000);
  EXPECT_GT(data->test_batches(1), 500);
  EXPECT_LE(data->problem().classes, 256);
}

TEST(Kinds, AreListedAndChecked) {
  EXPECT_EQ(data_kinds().size(), std::size_t{10});
  EXPECT_SAYS(error_of("imagenet"),
              "unknown data 'imagenet'; known are digits, stdlib, cifar10:DIR");
  EXPECT_SAYS(error_of("cifar10"), "data 'cifar10' does not say where; write cifar10:DIR");
  EXPECT_SAYS(error_of("idx:"), "does not say where; write idx:DIR");
  EXPECT_SAYS(error_of("digits:x"), "takes nothing after it; write digits");
}

}  // namespace
}  // namespace thinwire::train
