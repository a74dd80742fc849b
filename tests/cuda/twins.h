// twins.h: the ranks of a job on the CPU and, beside each, its twin on the GPU. A step runs both on
// the same gradients through all rounds, and compares bytes, averages, verdicts and memory.
//
//     Twins twins("int8:block=64", bucket, 3, stream);
//     twins.step(gradients);                      // one gradient per rank
//     twins.step(gradients, flip_a_bit);          // frames of a gather are changed before they are
//                                                 // decoded: both must find the same fault
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/cuda/device.h"
#include "tests/gradients.h"
#include "thinwire/comm/reduce.h"
#include "thinwire/compress/registry.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/wire/frame.h"

namespace thinwire {

inline State state_of(Compressor& compressor) {
  State state;
  StateSaver saver(state);
  compressor.visit_state(saver);
  return state;
}

// How far apart two numbers may be, relative to the larger one of the array; 0: the same bits.
inline std::string difference(std::span<const float> a, std::span<const float> b,
                              double tolerance = 0) {
  if (a.size() != b.size()) return "other size";
  double largest = 0;
  for (const float value : a) largest = std::max(largest, std::fabs(double{value}));
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool same = tolerance == 0 ? std::memcmp(&a[i], &b[i], sizeof(float)) == 0
                                     : std::fabs(double{a[i]} - b[i]) <= tolerance * largest;
    if (!same)
      return "[" + std::to_string(i) + "] of " + std::to_string(a.size()) + ": " +
             std::to_string(a[i]) + " and " + std::to_string(b[i]);
  }
  return "";
}

// Both have the same entries; a difference is named.
inline std::string difference(const State& a, const State& b, double tolerance = 0) {
  for (const auto& [name, entry] : a) {
    const auto found = b.find(name);
    if (found == b.end()) return "no " + name;
    const double apart = std::fabs(entry.number - found->second.number);
    if (!(apart <= tolerance * std::fabs(entry.number)))
      return name + ": " + std::to_string(entry.number) + " and " +
             std::to_string(found->second.number);
    const std::string text = difference(entry.values, found->second.values, tolerance);
    if (!text.empty()) return name + text;
  }
  return a.size() == b.size() ? "" : "another number of entries";
}

inline std::string first_difference(ConstBytes a, ConstBytes b) {
  std::size_t at = 0;
  while (at < a.size() && at < b.size() && a[at] == b[at]) ++at;
  if (at == a.size()) return "";
  return "byte " + std::to_string(at) + " of " + std::to_string(a.size());
}

// When the memories of both are compared. To look at a memory may complete what the next step would
// do on its own, so both are worth a test.
enum class Memory : std::uint8_t { every_step, at_the_end };

struct TwinOptions {
  DType dtype = DType::f32;  // of the gradients on the GPU; the CPU has the same values in f32
  std::size_t offset = 0;    // elements by which they are not aligned
  // Averages and memory may differ by this, relative; bytes are then not compared, and the GPU's
  // ranks must agree among themselves to the bit. 0: everything is the same to the bit.
  double tolerance = 0;
  bool same_code = true;  // both name the same thing wrong with a frame; else only its rank
  Memory memory = Memory::every_step;
};

class Twins {
 public:
  using Damage = std::function<void(std::size_t rank, std::vector<std::byte>& frame)>;

  Twins(const std::string& config, const Bucket& bucket, int ranks, Stream stream,
        TwinOptions options = {})
      : bucket_(bucket), stream_(stream), options_(options) {
    Bucket typed = bucket;
    typed.dtype = options.dtype;
    for (int rank = 0; rank < ranks; ++rank) {
      const Config parsed = Config::parse(config);
      cpu_.push_back(make_compressor(parsed, bucket, {rank, ranks}));
      gpu_.push_back(make_compressor(parsed, typed, {rank, ranks, true, true, gpu}));
    }
  }

  ~Twins() {
    if (options_.memory == Memory::every_step) return;
    for (std::size_t r = 0; r < cpu_.size(); ++r) compare_memory(r);
  }
  Twins(const Twins&) = delete;
  Twins& operator=(const Twins&) = delete;

  // One step of both. Returns what became of it: ok, skipped, or the code of the fault.
  Code step(const std::vector<std::vector<float>>& gradients, const Damage& damage = {}) {
    const std::size_t n = cpu_.size();
    Code outcome = Code::ok;
    given_.clear();
    averages_.clear();
    on_gpu_.clear();
    verdicts_.clear();
    payloads_.clear();
    culprits_.assign(n, -1);
    codes_.assign(n, Code::ok);
    for (std::size_t r = 0; r < n; ++r) {
      const Elements elements = elements_of(options_.dtype, gradients[r]);
      given_.push_back(options_.dtype == DType::f32 ? gradients[r]
                                                    : floats_of(options_.dtype, elements));
      averages_.push_back(given_[r]);
      on_gpu_.emplace_back(elements, options_.offset * size_of(options_.dtype));
      verdicts_.emplace_back(std::vector<Verdict>(1));
    }
    const int rounds = cpu_[0]->rounds();
    EXPECT_EQ(gpu_[0]->rounds(), rounds);
    for (int round = 0; round < rounds; ++round) run_round(round, damage, outcome);
    for (std::size_t r = 0; r < n; ++r) conclude(r, outcome);
    ++number_;
    return outcome;
  }

 private:
  struct Sent {
    std::vector<std::byte> bytes;
    std::size_t used = 0;
  };

  void run_round(int round, const Damage& damage, Code& outcome) {
    const std::size_t n = cpu_.size();
    const Leg leg = cpu_[0]->leg(number_, round), device_leg = gpu_[0]->leg(number_, round);
    EXPECT_EQ(leg.reduction, device_leg.reduction);
    EXPECT_EQ(leg.dtype, device_leg.dtype);
    const bool cpu_runs = outcome == Code::ok;  // as in an Exchange
    std::vector<Sent> here(n), there(n);
    for (std::size_t r = 0; r < n; ++r) {
      there[r] = encode_there(r, round, device_leg);
      if (!cpu_runs) continue;
      here[r] = encode_here(r, round, leg);
      compare(r, round, leg, here[r], there[r]);
    }
    // The CPU too gets slots without sizes, as a device does.
    const std::vector<std::byte> inbox =
        cpu_runs ? combined(leg, here, damage) : std::vector<std::byte>();
    const std::vector<std::byte> device_inbox = combined(device_leg, there, damage);
    const OnGpu<std::byte> slots(device_inbox);
    for (std::size_t r = 0; r < n; ++r) {
      const Inbox on_device{{slots.data(), slots.size()}, slot_of(device_leg), {}, -1};
      EXPECT_TRUE(gpu_[r]->decode(turn(r, round, nullptr, nullptr), on_device, view(r)).ok());
      if (!cpu_runs) continue;
      const Inbox on_host{inbox, slot_of(leg), {}, -1};
      const bool last = round + 1 == cpu_[r]->rounds();
      std::vector<float> average(last ? bucket_.elements() : 0);
      const Status status =
          cpu_[r]->decode({number_, round, {}, 0}, on_host, last ? average : averages_[r]);
      if (status.ok() && last) averages_[r] = average;
      codes_[r] = status.code;
      culprits_[r] = on_host.culprit;
      if (!status.ok()) outcome = status.code;
    }
    (void)slots.download(stream_);  // for its guards
  }

  Sent encode_here(std::size_t r, int round, const Leg& leg) {
    Sent sent{std::vector<std::byte>(leg.bytes), 0};
    const double norm = squared_norm(given_[r].data(), given_[r].size());
    sent.used = cpu_[r]->encode({number_, round, {}, norm}, given_[r], sent.bytes);
    return sent;
  }

  Sent encode_there(std::size_t r, int round, const Leg& leg) {
    const double norm = squared_norm(given_[r].data(), given_[r].size());
    const OnGpu<double> device_norm({norm});
    const OnGpu<std::uint64_t> written({leg.bytes});
    // Poison: what is sent must have been written. The payload stays for conclude().
    payloads_.emplace_back(std::vector<std::byte>(leg.bytes, std::byte{0xa5}));
    const OnGpu<std::byte>& out = payloads_.back();
    gpu_[r]->encode(turn(r, round, written.data(), device_norm.data()), view(r),
                    {out.data(), leg.bytes});
    return {out.download(stream_), written.download(stream_)[0]};
  }

  void compare(std::size_t r, int round, const Leg& leg, const Sent& here,
               const Sent& there) const {
    const std::string where = "rank " + std::to_string(r) + ", step " + std::to_string(number_) +
                              ", round " + std::to_string(round);
    if (options_.tolerance > 0) return;
    if (leg.reduction == Reduction::gather) {
      EXPECT_EQ(there.used, here.used) << where;
    }
    const auto bytes = std::span(here.bytes).first(here.used);
    EXPECT_LE(bytes.size(), there.bytes.size()) << where;
    if (leg.dtype == DType::f32 && leg.reduction == Reduction::sum && !bytes.empty()) {
      float first = 0;
      std::memcpy(&first, bytes.data(), sizeof first);
      if (std::isnan(first)) return;  // the sign of a void step; NaNs have several patterns
    }
    EXPECT_EQ(first_difference(bytes, there.bytes), "") << where;
  }

  static std::size_t slot_of(const Leg& leg) {
    return leg.reduction == Reduction::gather ? leg.bytes : 0;
  }

  // What the collective makes of the payloads.
  static std::vector<std::byte> combined(const Leg& leg, const std::vector<Sent>& sent,
                                         const Damage& damage) {
    std::vector<std::byte> inbox;
    if (leg.reduction != Reduction::gather) {
      inbox = sent[0].bytes;
      for (std::size_t r = 1; r < sent.size(); ++r)
        reduce_into(inbox, sent[r].bytes, leg.dtype,
                    leg.reduction == Reduction::sum ? ReduceOp::sum : ReduceOp::max);
      return inbox;
    }
    for (std::size_t r = 0; r < sent.size(); ++r) {
      std::vector<std::byte> frame = sent[r].bytes;
      frame.resize(std::min(sent[r].used, leg.bytes));
      if (damage) damage(r, frame);
      frame.resize(leg.bytes);
      inbox.insert(inbox.end(), frame.begin(), frame.end());
    }
    return inbox;
  }

  // Ends the step as an Exchange and a StreamExchange do.
  void conclude(std::size_t r, Code outcome) {
    const std::string where = "rank " + std::to_string(r) + ", step " + std::to_string(number_);
    const Turn host_turn{number_, 0, {}, 0};
    const bool is_void = outcome != Code::ok;
    const bool sound = cpu_[r]->sound().value_or(true);
    if (is_void) {
      averages_[r].assign(bucket_.elements(), 0.0f);
      if (sound) {
        cpu_[r]->undo(host_turn);
      } else {
        cpu_[r]->forget(host_turn, given_[r]);
      }
    }
    gpu_[r]->conclude(turn(r, 0, nullptr, nullptr), view(r), 0);
    const Verdict verdict = verdicts_[r].download(stream_)[0];
    EXPECT_EQ(verdict.skipped != 0, outcome == Code::skipped) << where;
    if (cpu_[r]->sound().has_value()) {
      EXPECT_EQ(verdict.unsound == 0, sound) << where;
    }
    if (is_void && outcome != Code::skipped) {
      EXPECT_NE(verdict.fault, 0u) << where;
      if (options_.same_code) {
        EXPECT_EQ(static_cast<int>(code_of(verdict.fault)), static_cast<int>(codes_[r])) << where;
      }
      EXPECT_EQ(rank_of(verdict.fault), culprits_[r]) << where;
      EXPECT_EQ(bucket_of(verdict.fault), bucket_.id) << where;
    } else {
      EXPECT_EQ(verdict.fault, 0u) << where;
    }
    const Elements got = on_gpu_[r].download(stream_);
    const Elements expected = elements_of(options_.dtype, averages_[r]);
    if (options_.tolerance == 0) {
      EXPECT_EQ(first_difference(expected, got), "") << "average of " << where;
    } else {
      EXPECT_EQ(difference(floats_of(options_.dtype, expected), floats_of(options_.dtype, got),
                           options_.tolerance),
                "")
          << "average of " << where;
      EXPECT_EQ(got, on_gpu_[0].download(stream_)) << "ranks differ, " << where;
    }
    if (options_.memory == Memory::every_step) compare_memory(r);
  }

  void compare_memory(std::size_t r) {
    EXPECT_EQ(difference(state_of(*cpu_[r]), state_of(*gpu_[r]), options_.tolerance), "")
        << "memory of rank " << r << ", step " << number_;
  }

  Turn turn(std::size_t r, int round, std::uint64_t* written, const double* norm) const {
    return {number_, round, stream_, 0, verdicts_[r].data(), written, norm};
  }
  TensorView view(std::size_t r) const {
    return {on_gpu_[r].data(), bucket_.elements(), options_.dtype, gpu};
  }

  Bucket bucket_;
  Stream stream_;
  TwinOptions options_;
  std::uint64_t number_ = 0;
  std::vector<std::unique_ptr<Compressor>> cpu_, gpu_;
  // Of the step that runs.
  std::vector<std::vector<float>> given_, averages_;
  std::deque<OnGpu<std::byte>> on_gpu_, payloads_;
  std::deque<OnGpu<Verdict>> verdicts_;
  std::vector<Code> codes_;
  std::vector<int> culprits_;
};

// Gives a changed frame its right checksum again, so that only its contents can be found out.
inline void reseal(std::vector<std::byte>& frame) {
  FrameHeader header;
  if (read_header(frame, header).ok()) seal_frame(header, frame);
}

// A bucket of several parameters, the first ones short.
inline Bucket layers(std::size_t count) {
  Bucket bucket{3, {}};
  std::size_t at = 0;
  for (std::size_t part = 1; at < count; part = part * 5 + 2) {
    const std::size_t size = std::min(part, count - at);
    bucket.parameters.push_back({"p" + std::to_string(at), at, size, {}});
    at += size;
  }
  return bucket;
}

// With THINWIRE_SMALL buckets are short and steps few: under compute-sanitizer a step takes long.
inline bool small_run() {
  static const bool small = std::getenv("THINWIRE_SMALL") != nullptr;
  return small;
}

// Tests that run twins. The laws below are those of every scheme on a GPU.
class TwinTest : public OnDevice {
 protected:
  using Shape = testing::Shape;

  static std::vector<std::vector<float>> gradients(Shape shape, const Bucket& bucket, int ranks,
                                                   std::uint64_t step) {
    std::vector<std::vector<float>> all;
    for (int rank = 0; rank < ranks; ++rank)
      all.push_back(testing::gradient(shape, bucket.elements(),
                                      100 * step + static_cast<std::uint64_t>(rank)));
    return all;
  }

  void run(const std::string& config, Bucket bucket, int ranks, std::uint64_t steps, Shape shape,
           TwinOptions options = {}) {
    if (small_run()) {
      const bool shaped = !bucket.parameters.empty() && !bucket.parameters.back().shape.empty();
      if (shaped && bucket.elements() > 1'000'000) return;
      if (!shaped && bucket.elements() > 9'001) bucket = layers(9'001);
      steps = std::min<std::uint64_t>(steps, 2);
    }
    SCOPED_TRACE(config + ", " + std::to_string(bucket.elements()) + " elements of " +
                 name_of(options.dtype));
    Twins twins(config, bucket, ranks, stream, options);
    for (std::uint64_t step = 0; step < steps && !HasFailure(); ++step)
      twins.step(gradients(shape, bucket, ranks, step));
  }

  void law_sizes(const std::string& config, TwinOptions options = {}) {
    for (const std::size_t count :
         {0u, 1u, 2u, 31u, 32u, 33u, 255u, 513u, 4095u, 4096u, 4097u, 50'001u}) {
      if (small_run() && count % 4097 > 1) continue;
      run(config, layers(count), 2, 4, Shape::normal, options);
      if (HasFailure()) return;
    }
  }

  void law_shapes(const std::string& config, TwinOptions options = {}) {
    for (const Shape shape : {Shape::heavy, Shape::constant, Shape::zero})
      run(config, layers(20'011), 3, 4, shape, options);
  }

  void law_unaligned(const std::string& config, TwinOptions options = {}) {
    for (const std::size_t offset : {1u, 2u, 3u}) {
      options.offset = offset;
      run(config, layers(30'000), 2, 3, Shape::heavy, options);
    }
  }

  void law_halves(const std::string& config, TwinOptions options = {}) {
    for (const DType type : {DType::f16, DType::bf16}) {
      options.dtype = type;
      options.offset = 0;
      run(config, layers(30'001), 2, 3, Shape::normal, options);
      options.offset = 1;
      run(config, layers(5'000), 2, 3, Shape::heavy, options);
    }
  }

  // Denormals, both zeros, equal magnitudes, numbers near the limit.
  void law_odd_values(const std::string& config, TwinOptions options = {}) {
    SCOPED_TRACE(config);
    const Bucket bucket = layers(12'345);
    Twins twins(config, bucket, 2, stream, options);
    for (std::uint64_t step = 0; step < 6 && !HasFailure(); ++step) {
      auto all = gradients(Shape::normal, bucket, 2, step);
      const float odd[] = {1e-45f, -1e-40f, 0.0f, -0.0f, 0.5f, -0.5f, 1e-30f, 1e20f};
      for (auto& one : all)
        for (std::size_t i = step; i < one.size(); ++i) {
          if (step == 0) one[i] = odd[random_below(step, i, 6)];
          if (step == 1) one[i] *= 1e-39f;
          if (step == 2 && i % 3 != 0) one[i] = odd[random_below(step, i, 8)];
          if (step == 3) one[i] = (i & 64) != 0 ? -0.0f : 0.0f;
          if (step == 4) one[i] *= 1e22f;
        }
      twins.step(all);
    }
  }

  // Steps with a gradient that is not finite, or beyond the limit, on one rank or on all.
  void law_void_steps(const std::string& config, TwinOptions options = {}) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float inf = std::numeric_limits<float>::infinity();
    SCOPED_TRACE(config);
    const Bucket bucket = layers(9'001);
    Twins twins(config, bucket, 2, stream, options);
    for (std::uint64_t step = 0; step < 12 && !HasFailure(); ++step) {
      auto all = gradients(Shape::heavy, bucket, 2, step);
      if (step % 3 == 1) all[step % 2][step * 700] = step % 4 == 1 ? nan : -inf;
      if (step == 5) all[0].assign(bucket.elements(), 3e38f);
      if (step == 8) all[1][17] = 1e-45f;
      const Code code = twins.step(all);
      if (step != 5) {
        EXPECT_EQ(code == Code::skipped, step % 3 == 1) << step;
      }
    }
  }

  // Frames that a hostile or broken network has changed: one byte, at each of several places, or
  // all of it. Nobody reads outside a slot, and nothing is lost.
  void law_damage(const std::string& config, std::size_t elements = 3'001,
                  TwinOptions options = {}) {
    SCOPED_TRACE(config);
    const Bucket bucket = layers(elements);
    Twins twins(config, bucket, 3, stream, options);
    const std::size_t places[] = {0, 2, 3, 4, 5, 6, 8, 12, 16, 20, 23, 24, 30, 100};
    std::uint64_t step = 0;
    for (const std::size_t at : places) {
      if (small_run() && at % 20 != 0) continue;
      bool reached = false;  // the frame is long enough
      for (const unsigned flip : {1u, 0x80u, 0xffu}) {
        const Code code = twins.step(gradients(Shape::normal, bucket, 3, step++),
                                     [&](std::size_t rank, std::vector<std::byte>& frame) {
                                       if (rank != 1 || at >= frame.size()) return;
                                       reached = true;
                                       frame[at] ^= static_cast<std::byte>(flip);
                                     });
        EXPECT_TRUE(code != Code::ok || !reached) << "byte " << at << ", " << flip;
        if (HasFailure()) return;
      }
    }
    for (std::uint64_t seed = 0; seed < (small_run() ? 9 : 40) && !HasFailure(); ++seed)
      twins.step(gradients(Shape::normal, bucket, 3, step++),
                 [&](std::size_t rank, std::vector<std::byte>& frame) {
                   if (rank != 2) return;
                   if (seed < 4) {
                     for (std::size_t i = seed == 0 ? 0 : 24; i < frame.size(); ++i)
                       frame[i] = static_cast<std::byte>(random_at(seed, i));
                   } else {
                     const auto size = static_cast<std::uint32_t>(frame.size());
                     const std::size_t at =
                         seed < 8 ? frame.size() - 1 : 24 + random_below(seed, 0, size - 24);
                     frame[at] ^= std::byte{1} << random_below(seed, 1, 8);
                   }
                   if (seed > 1) reseal(frame);
                 });
  }

  void all_laws(const std::string& config, TwinOptions options = {}) {
    law_sizes(config, options);
    law_shapes(config, options);
    law_unaligned(config, options);
    law_halves(config, options);
    law_odd_values(config, options);
    law_void_steps(config, options);
  }
};

// A scheme with its defaults and with the options of each of its variants.
inline std::vector<std::string> configs_of(const std::string& scheme) {
  std::vector<std::string> all = {scheme};
  for (const std::string& variant : find_scheme(scheme).variants)
    all.push_back(scheme + ":" + variant);
  return all;
}

}  // namespace thinwire
