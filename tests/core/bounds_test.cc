// bounds_test.cc: the last value that is accepted and the first that is rejected, and draws whose
// bits are a promise.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>

#include "tests/gradients.h"
#include "thinwire/core/crc32c.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/options.h"
#include "thinwire/core/parallel.h"
#include "thinwire/core/random.h"
#include "thinwire/core/state.h"
#include "thinwire/core/view.h"

namespace thinwire {
namespace {

using testing::error_of;
using testing::sanitized;

// A checkpoint stores seeds, not draws, so other bits after an update would change a
// resumed training.
TEST(Random, DrawsAreAPromise) {
  EXPECT_EQ(random_at(0, 0), 0xe220a8397b1dcdafu);
  EXPECT_EQ(random_at(1, 2), 0xd424f2654f316ee0u);
  EXPECT_EQ(random_at(std::uint64_t{1} << 63, 77), 0x0ef15e6ac4bffaf5u);
  const std::uint32_t below[] = {232, 120, 509, 995}, units[] = {3904992, 2022339, 8546556};
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(random_below(5, i, 1000), below[i]);
  for (std::uint64_t i = 0; i < 3; ++i)
    EXPECT_EQ(random_unit(5, i), static_cast<float>(units[i]) * 0x1p-24f);
  EXPECT_EQ(stream_seed(7, 3, 2, 1), 0xe090d2448340f2dfu);
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::f32), 4u);
  EXPECT_EQ(size_of(DType::i32), 4u);
  EXPECT_EQ(size_of(DType::f16), 2u);
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_EQ(size_of(DType::i8), 1u);
  EXPECT_STREQ(name_of(DType::f32), "f32");
  EXPECT_STREQ(name_of(DType::f16), "f16");
  EXPECT_STREQ(name_of(DType::bf16), "bf16");
  EXPECT_STREQ(name_of(DType::i8), "i8");
  EXPECT_STREQ(name_of(DType::i32), "i32");
}

const std::vector<Option> known = {{"x", "0", "help"}, {"way", "on", "help"}};

Options with_x(const std::string& value) { return {Config{"s", {{"x", value}}}, known}; }

TEST(Options, TakeTheirBoundsAndNoMore) {
  const auto number = [](const char* text) {
    return error_of([&] { (void)with_x(text).number("x", 0.5, 2); });
  };
  EXPECT_EQ(number("2"), "");
  EXPECT_EQ(number("0.6"), "");
  for (const char* bad : {"0.5", "0.4", "2.1", "many"}) EXPECT_NE(number(bad), "") << bad;
  const auto from = [](const char* text) {
    return error_of([&] { (void)with_x(text).number_from("x", 0.5, 2); });
  };
  EXPECT_EQ(from("0.5"), "");
  EXPECT_EQ(from("1.9"), "");
  for (const char* bad : {"0.4", "2", "2.1", "many"}) EXPECT_NE(from(bad), "") << bad;
  const auto integer = [](const char* text) {
    return error_of([&] { (void)with_x(text).integer("x", -1, 3); });
  };
  EXPECT_EQ(integer("-1"), "");
  EXPECT_EQ(integer("3"), "");
  for (const char* bad : {"-2", "4", "1.5", "many"}) EXPECT_NE(integer(bad), "") << bad;
  EXPECT_EQ(with_x("-1").integer("x", -1, 3), -1);
}

// Text that is not a number is reported as such, not as a number out of range.
TEST(Options, TextIsToldFromNumbers) {
  const auto says = [](const std::string& text, const char* what) {
    return text.find(what) != std::string::npos;
  };
  const Options text = with_x("many"), big = with_x("9");
  const char* no_number = "option 'x': expected a number, got 'many'";
  EXPECT_TRUE(says(error_of([&] { (void)text.number("x", 0, 1); }), no_number));
  EXPECT_TRUE(says(error_of([&] { (void)text.number_from("x", 0, 1); }), no_number));
  EXPECT_TRUE(says(error_of([&] { (void)text.integer("x", 0, 1); }), no_number));
  EXPECT_TRUE(says(error_of([&] { (void)big.number("x", 0, 1); }), "in (0, 1], got 9"));
  EXPECT_TRUE(says(error_of([&] { (void)big.number_from("x", 0, 1); }), "in [0, 1), got 9"));
  EXPECT_TRUE(says(error_of([&] { (void)big.integer("x", 0, 1); }), "from 0 to 1, got 9"));
}

// Inside the range, but not after rounding to f32.
TEST(Options, StayInTheirRangeAsFloats) {
  const auto number = [](const char* text, double above, double up_to) {
    return error_of([&] { (void)with_x(text).number("x", above, up_to); });
  };
  const auto from = [](const char* text, double least, double below) {
    return error_of([&] { (void)with_x(text).number_from("x", least, below); });
  };
  EXPECT_NE(number("0.50000000001", 0.5, 2).find("as a 32-bit float is 0.5"), std::string::npos);
  EXPECT_NE(number("0.3", 0, 0.3), "");  // 0.3 as a float is above
  EXPECT_EQ(number("0.3", 0, 1), "");
  EXPECT_NE(from("1.99999999999", 0.5, 2).find("as a 32-bit float is 2"), std::string::npos);
  EXPECT_NE(from("0.7", 0.7, 2), "");  // 0.7 as a float is below
  EXPECT_EQ(from("0.3", 0.3, 2), "");
  EXPECT_NE(number("1e-39", -1, 1).find("32-bit float"), std::string::npos);
  EXPECT_NE(from("-1e-39", -1, 1).find("32-bit float"), std::string::npos);
  EXPECT_EQ(number("0", -1, 1), "");
  EXPECT_EQ(from("0", 0, 1), "");
  EXPECT_EQ(number("1.1754943508222875e-38", -1, 1), "");  // the smallest normal float
}

TEST(Options, ChoicesAndFlags) {
  const std::string_view choices[] = {"red", "green", "blue"};
  EXPECT_EQ(with_x("red").choice("x", choices), 0u);
  EXPECT_EQ(with_x("blue").choice("x", choices), 2u);
  EXPECT_NE(error_of([&] { (void)with_x("grey").choice("x", choices); }).find("red, green, blue"),
            std::string::npos);
  EXPECT_TRUE(with_x("on").flag("x"));
  EXPECT_FALSE(with_x("off").flag("x"));
  EXPECT_NE(error_of([] { (void)with_x("yes").flag("x"); }).find("off, on; got 'yes'"),
            std::string::npos);
  EXPECT_NE(error_of([] { (void)with_x("1").number("y", 0, 1); }).find("not listed"),
            std::string::npos);
  EXPECT_NE(error_of([] { Options(Config::parse("s:z=1"), {}); }).find("it has: none"),
            std::string::npos);
}

TEST(Config, RefusesAKeyWithoutAName) {
  EXPECT_NE(error_of([] { (void)Config::parse("s:=1"); }).find("KEY=VALUE"), std::string::npos);
  EXPECT_NE(error_of([] { (void)Config::parse(":a=1"); }).find("expected NAME"), std::string::npos);
  EXPECT_EQ(Config::parse("s:a=").options.at("a"), "");
  EXPECT_EQ(Config::parse("s:a=1,b=2").options.size(), 2u);
}

TEST(Bucket, HoldsAtMostWhatFourBytesCount) {
  const std::size_t most = std::numeric_limits<std::uint32_t>::max();
  EXPECT_EQ(error_of([&] { validate(Bucket::single(0, "a", most)); }), "");
  EXPECT_NE(error_of([&] { validate(Bucket::single(0, "a", most + 1)); }), "");
  EXPECT_EQ(Bucket{}.elements(), 0u);
  EXPECT_EQ((Bucket{0, {{"a", 0, 5, {}}, {"b", 5, 2, {}}}}.elements()), 7u);
}

TEST(View, IsCheckedForKindTypeAndLength) {
  std::vector<float> values(3);
  EXPECT_EQ(error_of([&] { require_f32_cpu(values, 3, "who"); }), "");
  EXPECT_NE(error_of([&] { require_f32_cpu(values, 4, "who"); }).find("expected 4 elements, got 3"),
            std::string::npos);
  const TensorView half(values.data(), 3, DType::f16, {}),
      far(values.data(), 3, DType::f32, {Device::Kind::cuda, 2});
  EXPECT_NE(error_of([&] { require_f32_cpu(half, 3, "who"); }).find("got f16"), std::string::npos);
  EXPECT_NE(error_of([&] { require_f32_cpu(far, 3, "who"); }).find("cuda:2"), std::string::npos);
}

TEST(View, OfABucketIsCheckedForItsDeviceTypeAndLength) {
  std::vector<float> values(3);
  const Device gpu{Device::Kind::cuda, 1};
  const auto error = [&](const Bucket& bucket, Device at, DType type, Device device) {
    const TensorView view(values.data(), 3, type, device);
    return error_of([&] { require_gradient(view, bucket, at, "who"); });
  };
  const Bucket floats = Bucket::single(0, "w", 3), more = Bucket::single(0, "w", 4),
               halves = Bucket::single(0, "w", 3, DType::bf16);
  EXPECT_EQ(error(floats, {}, DType::f32, {}), "");
  EXPECT_EQ(error(halves, gpu, DType::bf16, gpu), "");
  EXPECT_EQ(error(more, {}, DType::f32, {}).find("who: expected 4 elements, got 3"), 0u);
  EXPECT_EQ(error(floats, {}, DType::f16, {}).find("who: expected f32 elements, got f16"), 0u);
  EXPECT_EQ(error(floats, {}, DType::f32, gpu)
                .find("who: expected memory of the CPU, got memory of "
                      "cuda:1"),
            0u);
  EXPECT_EQ(error(halves, gpu, DType::bf16, {Device::Kind::cuda, 0})
                .find("who: expected memory of cuda:1, got memory of cuda:0"),
            0u);
}

TEST(View, StartsEmpty) {
  EXPECT_EQ(TensorView().data, nullptr);
  EXPECT_EQ(TensorView().count, 0u);
  EXPECT_EQ(Parameter().offset, 0u);
  EXPECT_EQ(Parameter().count, 0u);
  EXPECT_EQ(Bucket().id, 0u);
  EXPECT_EQ(Bucket::single(3, "w", 5).parameters[0].offset, 0u);
  EXPECT_EQ(Device().index, 0);
  EXPECT_EQ(Site().rank, 0);
  EXPECT_EQ(Site().world, 1);
  EXPECT_TRUE(Site().sums);
  EXPECT_TRUE(Site().sends);
  EXPECT_EQ(StateEntry().number, 0);
  EXPECT_FALSE(StateEntry().is_tensor);
}

// As many pieces as threads. Each waits until all are running.
TEST(Parallel, PiecesRunAtTheSameTime) {
  for (const int count : {3, 3, 2}) {
    set_threads(count);
    EXPECT_EQ(threads(), count);
    std::atomic<int> under_way = 0, met = 0;
    parallel_for(static_cast<std::size_t>(count), [&](std::size_t) {
      ++under_way;
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (under_way < count && std::chrono::steady_clock::now() < limit)
        std::this_thread::yield();
      met += under_way == count ? 1 : 0;
    });
    EXPECT_EQ(met, count);
  }
  set_threads(1);
  EXPECT_EQ(threads(), 1);
  const auto here = std::this_thread::get_id();
  parallel_for(5, [&](std::size_t) { EXPECT_EQ(std::this_thread::get_id(), here); });
}

TEST(Parallel, RefusesSillyNumbersOfThreads) {
  EXPECT_NE(error_of([] { set_threads(0); }).find("1 to 1024"), std::string::npos);
  EXPECT_NE(error_of([] { set_threads(1025); }).find("1 to 1024"), std::string::npos);
  EXPECT_EQ(threads(), 1);
  if (sanitized) return;
  set_threads(1024);
  EXPECT_EQ(threads(), 1024);
  set_threads(1);
}

// Runs in its own process, because the environment is read once.
TEST(Parallel, DISABLED_TellsItsNumber) { std::printf("threads: %d\n", threads()); }

std::string output_of(const std::string& setting) {
  // Without the shards to which this process may belong.
  const std::string command = "env -u GTEST_TOTAL_SHARDS -u GTEST_SHARD_INDEX " + setting +
                              " /proc/$PPID/exe --gtest_filter='*TellsItsNumber' "
                              "--gtest_also_run_disabled_tests 2>&1";
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  ::pclose(pipe);
  return text;
}

std::string output_with_threads(const std::string& number) {
  return output_of("THINWIRE_THREADS='" + number + "'");
}

TEST(Parallel, TheEnvironmentSaysHowManyThreads) {
  EXPECT_NE(output_of("-u THINWIRE_THREADS").find("threads: 1\n"), std::string::npos);
  EXPECT_NE(output_with_threads("1").find("threads: 1\n"), std::string::npos);
  EXPECT_NE(output_with_threads("7").find("threads: 7\n"), std::string::npos);
  if (!sanitized) {
    EXPECT_NE(output_with_threads("1024").find("threads: 1024\n"), std::string::npos);
  }
  for (const char* bad : {"0", "-1", "1025", "", "x", "2x"})
    EXPECT_NE(output_with_threads(bad).find("from 1 to 1024"), std::string::npos) << bad;
}

// A state of one entry, byte by byte, with a valid checksum.
struct RawState {
  std::string magic = "twst";
  std::uint32_t version = 1;
  std::uint64_t entries = 1;
  std::vector<std::string> names = {"w"};
  std::uint8_t is_tensor = 1, share = 0;
  std::uint64_t count = 2;
  std::size_t floats = 2, behind = 0;

  std::vector<std::byte> bytes() const {
    std::string out;
    const auto put = [&](const auto& value) {
      out.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    out += magic;
    put(version);
    put(entries);
    for (const std::string& name : names) {
      put(static_cast<std::uint32_t>(name.size()));
      out += name;
      put(is_tensor);
      put(share);
      if (is_tensor == 0) put(double{2.5});
      if (is_tensor != 0) put(count);
      for (std::size_t i = 0; is_tensor != 0 && i < floats; ++i) put(static_cast<float>(i));
    }
    out.append(behind, 'x');
    put(crc32c(std::as_bytes(std::span(out))));
    const auto raw = std::as_bytes(std::span(out));
    return {raw.begin(), raw.end()};
  }
  Code code() const {
    State state = example();
    const Status status = deserialize(bytes(), state);
    EXPECT_EQ(state.count("old"), 0u);
    return status.code;
  }
  static State example() { return {{"old", {}}}; }
};

RawState changed(const auto& change) {
  RawState raw;
  change(raw);
  return raw;
}

TEST(State, HostileBytesWithASoundChecksumAreRefused) {
  EXPECT_EQ(RawState{}.code(), Code::ok);
  EXPECT_EQ(changed([](RawState& raw) { raw.is_tensor = 0; }).code(), Code::ok);
  EXPECT_EQ(changed([](RawState& raw) { raw.share = 2; }).code(), Code::ok);
  EXPECT_EQ(changed([](RawState& raw) { raw.names = {std::string(4096, 'n')}; }).code(), Code::ok);
  EXPECT_EQ(changed([](RawState& raw) {
              raw.entries = 2, raw.names = {"a", "b"};
            }).code(),
            Code::ok);
  EXPECT_EQ(changed([](RawState& raw) { raw.magic = "twsu"; }).code(), Code::bad_magic);
  EXPECT_EQ(changed([](RawState& raw) { raw.version = 2; }).code(), Code::bad_version);
  EXPECT_EQ(changed([](RawState& raw) { raw.is_tensor = 2; }).code(), Code::bad_value);
  EXPECT_EQ(changed([](RawState& raw) { raw.share = 3; }).code(), Code::bad_value);
  EXPECT_EQ(changed([](RawState& raw) { raw.names = {std::string(4097, 'n')}; }).code(),
            Code::bad_value);
  EXPECT_EQ(changed([](RawState& raw) {
              raw.entries = 2, raw.names = {"b", "a"};
            }).code(),
            Code::bad_value);
  EXPECT_EQ(changed([](RawState& raw) {
              raw.entries = 2, raw.names = {"a", "a"};
            }).code(),
            Code::bad_value);
  EXPECT_EQ(changed([](RawState& raw) { raw.behind = 1; }).code(), Code::bad_value);
  EXPECT_EQ(changed([](RawState& raw) { raw.entries = 2; }).code(), Code::truncated);
  EXPECT_EQ(changed([](RawState& raw) { raw.entries = 0; }).code(), Code::bad_value);
  EXPECT_EQ(changed([](RawState& raw) { raw.count = 3; }).code(), Code::truncated);
  EXPECT_EQ(changed([](RawState& raw) { raw.count = ~std::uint64_t{0}; }).code(), Code::truncated);
  EXPECT_EQ(changed([](RawState& raw) { raw.count = 1; }).code(), Code::bad_value);
  EXPECT_EQ(changed([](RawState& raw) { raw.entries = 0, raw.names = {}; }).code(), Code::ok);
  State state;
  EXPECT_EQ(deserialize({}, state).code, Code::truncated);
  EXPECT_EQ(deserialize(ConstBytes(RawState{}.bytes()).first(7), state).code, Code::truncated);
  EXPECT_EQ(deserialize(ConstBytes(RawState{}.bytes()).first(19), state).code, Code::truncated);
  EXPECT_EQ(deserialize(ConstBytes(RawState{}.bytes()).first(20), state).code, Code::bad_checksum);
}

// Every prefix of the entry, each with a valid checksum.
TEST(State, CutsInsideAnEntryAreRefused) {
  for (const bool is_tensor : {false, true}) {
    RawState raw;
    raw.is_tensor = is_tensor ? 1 : 0;
    const std::vector<std::byte> whole = raw.bytes();
    for (std::size_t length = 16; length < whole.size() - 4; ++length) {
      std::vector<std::byte> cut(whole.begin(),
                                 whole.begin() + static_cast<std::ptrdiff_t>(length));
      const std::uint32_t crc = crc32c(cut);
      const auto tail = std::as_bytes(std::span(&crc, 1));
      cut.insert(cut.end(), tail.begin(), tail.end());
      State state;
      EXPECT_EQ(deserialize(cut, state).code, Code::truncated) << length;
    }
  }
}

TEST(State, NamesHaveAtMost4096Bytes) {
  State state = {{std::string(4096, 'n'), {}}};
  EXPECT_EQ(error_of([&] { (void)serialize(state); }), "");
  state = {{std::string(4097, 'n'), {}}};
  EXPECT_NE(error_of([&] { (void)serialize(state); }).find("'" + std::string(40, 'n') + "...'"),
            std::string::npos);
}

}  // namespace
}  // namespace thinwire
