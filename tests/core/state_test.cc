// state_test.cc: state by name: saved, loaded, rejected.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/state.h"

#include <gtest/gtest.h>

#include <unistd.h>
#include <cstdio>
#include <filesystem>
#include <limits>

#include "tests/gradients.h"

namespace thinwire {
namespace {

using testing::error_of;

State example() {
  return {{"conv/u", {Share::summed, {1.5f, -2.0f, 0.0f}, 0, true}},
          {"conv/none", {Share::summed, {}, 0, true}},
          {"bucket0/threshold0", {Share::local, {}, 0.125, false}}};
}

// A path that is removed when the test ends.
struct Scratch {
  std::string path =
      (std::filesystem::temp_directory_path() / ("thinwire_state_" + std::to_string(::getpid())))
          .string();
  ~Scratch() { std::remove(path.c_str()); }
};

TEST(State, RoundTripsThroughBytesAndFiles) {
  const State state = example();
  State loaded;
  ASSERT_TRUE(deserialize(serialize(state), loaded).ok());
  EXPECT_EQ(loaded, state);
  const Scratch file;
  save_file(file.path, state);
  save_file(file.path, state);  // over an older one
  EXPECT_EQ(load_file(file.path), state);
}

TEST(State, EveryFlippedBitAndEveryTruncationIsFound) {
  const std::vector<std::byte> bytes = serialize(example());
  State loaded;
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(deserialize(ConstBytes(bytes).first(length), loaded).ok()) << length;
  }
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::vector<std::byte> damaged = bytes;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_FALSE(deserialize(damaged, loaded).ok()) << bit;
  }
}

TEST(State, BadFilesAreNamed) {
  EXPECT_NE(
      error_of([] { load_file("no/such/file"); }).find("cannot open state file 'no/such/file'"),
      std::string::npos);
  const Scratch file;
  save_file(file.path, example());
  std::filesystem::resize_file(file.path, 20);
  const std::string text = error_of([&] { load_file(file.path); });
  EXPECT_NE(text.find(file.path), std::string::npos);
  EXPECT_NE(text.find("20 bytes"), std::string::npos);
  std::filesystem::resize_file(file.path, 0);
  EXPECT_NE(error_of([&] { load_file(file.path); }).find("0 bytes"), std::string::npos);
  EXPECT_NE(error_of([] { save_file("no/such/folder/file", {}); }).find("cannot write"),
            std::string::npos);
}

// A full disk is noticed before the old file is replaced, and the new file is removed.
TEST(State, AFullDiskLeavesTheOldFile) {
  const Scratch file;
  save_file(file.path, example());
  const std::string beside = file.path + ".new";
  std::filesystem::create_symlink("/dev/full", beside);
  EXPECT_NE(error_of([&] { save_file(file.path, {}); }).find("cannot write"), std::string::npos);
  EXPECT_FALSE(std::filesystem::is_symlink(beside));
  EXPECT_EQ(load_file(file.path), example());
}

TEST(State, AFolderIsNoFile) {
  const Scratch folder;
  std::filesystem::create_directory(folder.path);
  EXPECT_NE(error_of([&] { save_file(folder.path, {}); }).find("cannot rename"), std::string::npos);
  EXPECT_NE(error_of([&] { load_file(folder.path); }).find(folder.path), std::string::npos);
  std::filesystem::remove(folder.path + ".new");
}

TEST(State, LoadingRefusesWhatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const State state = {{"w/u", {Share::summed, {1, 2, nan}, 0, true}}};
  std::vector<float> three(3);
  EXPECT_NE(error_of([&] {
              StateLoader(state).tensor("w/u", three, Share::summed);
            }).find("element 2 is nan"),
            std::string::npos);
  EXPECT_EQ(three, std::vector<float>(3));
}

TEST(State, LoadingNamesWhatDoesNotFit) {
  const State state = example();
  StateLoader loader(state);
  std::vector<float> three(3), two(2);
  double number = 0;
  loader.tensor("conv/u", three, Share::summed);
  EXPECT_EQ(three, (std::vector<float>{1.5f, -2.0f, 0.0f}));
  loader.number("bucket0/threshold0", number, Share::local);
  EXPECT_EQ(number, 0.125);
  const auto text = [](auto body) { return error_of(body); };
  EXPECT_NE(text([&] {
              loader.tensor("conv/v", three, Share::summed);
            }).find("'conv/v' is not in the checkpoint"),
            std::string::npos);
  EXPECT_NE(text([&] { loader.number("a", number, Share::local); }).find("not in the checkpoint"),
            std::string::npos);
  EXPECT_NE(text([&] { loader.tensor("conv/u", two, Share::summed); }).find("expected 2 elements"),
            std::string::npos);
  EXPECT_NE(text([&] { loader.number("conv/u", number, Share::local); }).find("expected a number"),
            std::string::npos);
}

TEST(State, SavingTheSameNameTwiceIsAnError) {
  State state;
  StateSaver saver(state);
  std::vector<float> values(1);
  double number = 0;
  saver.tensor("w/u", values, Share::summed);
  EXPECT_NE(error_of([&] { saver.tensor("w/u", values, Share::summed); }).find("twice"),
            std::string::npos);
  EXPECT_NE(error_of([&] { saver.number("w/u", number, Share::local); }).find("twice"),
            std::string::npos);
}

}  // namespace
}  // namespace thinwire
