// data_speech.cc: batches of utterances of different lengths, and a generator of sounds.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/data_speech.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "apps/train/answers.h"
#include "apps/train/data_kinds.h"
#include "apps/train/data_order.h"
#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

struct Example {
  std::vector<float> frames;
  std::vector<std::int64_t> characters;
};

// ---- batches

class SpeechData : public Data {
 public:
  SpeechData(std::vector<Example> train, std::vector<Example> test, std::int64_t channels,
             std::int64_t classes)
      : train_(std::move(train)), test_(std::move(test)), channels_(channels), classes_(classes) {}

  Problem problem() const override { return {Domain::speech, channels_, 1, 1, classes_}; }
  std::int64_t train_examples() const override { return static_cast<std::int64_t>(train_.size()); }

  Batch train_batch_of(const std::vector<std::int64_t>& examples, const Draw&) const override {
    return gather(train_, examples);
  }

  std::int64_t test_batches(std::int64_t batch) const override {
    return count_batches(static_cast<std::int64_t>(test_.size()), batch);
  }

  Batch test_batch(std::int64_t index, std::int64_t batch) const override {
    const Range range = batch_range(static_cast<std::int64_t>(test_.size()), index, batch);
    std::vector<std::int64_t> chosen(static_cast<std::size_t>(range.count));
    std::iota(chosen.begin(), chosen.end(), range.first);
    return gather(test_, chosen);
  }

 private:
  std::int64_t frames_of(const Example& example) const {
    return static_cast<std::int64_t>(example.frames.size()) / channels_;
  }

  // Longest first, as recurrent layers want it.
  Batch gather(const std::vector<Example>& all, const std::vector<std::int64_t>& chosen) const {
    std::vector<const Example*> examples;
    for (const std::int64_t i : chosen) examples.push_back(&all[static_cast<std::size_t>(i)]);
    std::stable_sort(examples.begin(), examples.end(), [](const Example* a, const Example* b) {
      return a->frames.size() > b->frames.size();
    });
    std::size_t most = 0;
    for (const Example* each : examples) most = std::max(most, each->characters.size());
    return padded(examples, frames_of(*examples.front()), static_cast<std::int64_t>(most));
  }

  Batch padded(const std::vector<const Example*>& examples, std::int64_t frames,
               std::int64_t characters) const {
    const auto count = static_cast<std::int64_t>(examples.size());
    Batch batch{torch::zeros({count, frames, channels_}),
                torch::zeros({count, characters}, torch::kInt64),
                torch::empty({count}, torch::kInt64), torch::empty({count}, torch::kInt64)};
    auto* input = batch.input.data_ptr<float>();
    auto* target = batch.target.data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < count; ++i) {
      const Example& example = *examples[static_cast<std::size_t>(i)];
      std::copy(example.frames.begin(), example.frames.end(), input + i * frames * channels_);
      std::copy(example.characters.begin(), example.characters.end(), target + i * characters);
      batch.frames.data_ptr<std::int64_t>()[i] = frames_of(example);
      batch.characters.data_ptr<std::int64_t>()[i] =
          static_cast<std::int64_t>(example.characters.size());
    }
    return batch;
  }

  std::vector<Example> train_, test_;
  std::int64_t channels_, classes_;
};

// ---- from utterances to examples

// Every character that occurs, also in the test set, in the order of bytes.
class Alphabet {
 public:
  explicit Alphabet(const Speech& speech) {
    for (const auto* part : {&speech.train, &speech.test}) {
      for (const Utterance& utterance : *part) {
        for (const char byte : utterance.words) code_[static_cast<std::uint8_t>(byte)] = 1;
      }
    }
    code_[' '] = 0;
    for (std::int64_t& each : code_) each = each != 0 ? classes_++ : 0;
    code_[' '] = space;
  }

  std::int64_t classes() const { return classes_; }

  std::vector<std::int64_t> encode(const std::string& words) const {
    std::vector<std::int64_t> characters;
    for (const char byte : words) characters.push_back(code_[static_cast<std::uint8_t>(byte)]);
    return characters;
  }

 private:
  std::array<std::int64_t, 256> code_{};
  std::int64_t classes_ = space + 1;
};

// CTC needs an answer for each character, and one between two that are equal.
void check_length(const Utterance& utterance, std::int64_t frames) {
  if (utterance.words.find_first_not_of(' ') == std::string::npos)
    fail("utterance '", utterance.name, "' has no words; remove it from the list");
  std::int64_t needed = 0;
  char before = '\0';
  for (const char each : utterance.words) needed += std::exchange(before, each) == each ? 2 : 1;
  if (answers_of(frames) >= needed) return;
  fail("utterance '", utterance.name, "' has ", frames, " frames, but '", utterance.words,
       "' needs ", 2 * needed - 1, "; remove it from the list, or repair its features");
}

// Speakers and microphones differ in the mean and the strength of every channel.
void normalize(std::vector<float>& frames, std::size_t channels) {
  const std::size_t count = frames.size() / channels;
  for (std::size_t channel = 0; channel < channels; ++channel) {
    double sum = 0, squares = 0;
    for (std::size_t i = channel; i < frames.size(); i += channels) {
      sum += frames[i];
      squares += static_cast<double>(frames[i]) * frames[i];
    }
    const double mean = sum / static_cast<double>(count);
    const double variance = squares / static_cast<double>(count) - mean * mean;
    const double scale = variance > 1e-12 ? 1 / std::sqrt(variance) : 1;
    for (std::size_t i = channel; i < frames.size(); i += channels)
      frames[i] = static_cast<float>((frames[i] - mean) * scale);
  }
}

std::vector<Example> examples_of(std::vector<Utterance> utterances, const Alphabet& alphabet,
                                 std::int64_t channels) {
  std::vector<Example> examples;
  for (Utterance& utterance : utterances) {
    check_length(utterance, static_cast<std::int64_t>(utterance.frames.size()) / channels);
    normalize(utterance.frames, static_cast<std::size_t>(channels));
    examples.push_back({std::move(utterance.frames), alphabet.encode(utterance.words)});
  }
  return examples;
}

// ---- tones

constexpr std::int64_t tone_channels = 13;
constexpr std::uint64_t tone_letters = 6;

// Speaks one letter (or, as letter 6, silence) for 5 to 8 frames: its pattern with some noise.
void sound(std::uint64_t letter, std::uint64_t key, std::vector<float>& frames) {
  const std::uint64_t pattern = random_at(stream_key(0, Stream::pattern), letter);
  const std::uint64_t length = 5 + random_below(key, 0, 4);
  for (std::uint64_t i = 0; i < length * tone_channels; ++i) {
    const auto noise = static_cast<float>(random_at(key, i + 1) >> 40) / 0x1p24f - 0.5f;
    const bool on = letter < tone_letters && (pattern >> (i % tone_channels) & 1) != 0;
    frames.push_back((on ? 1.0f : 0.0f) + noise);
  }
}

// Two or three words of two to four letters. No letter follows itself.
Utterance tones(std::uint64_t number) {
  const std::uint64_t key = random_at(stream_key(0, Stream::noise), number);
  Utterance utterance{"tones " + std::to_string(number), {}, ""};
  std::uint64_t draw = 0, letter = 0;
  const auto below = [&](std::uint32_t count) { return random_below(key, draw++, count); };
  const std::uint32_t words = 2 + below(2);
  for (std::uint32_t word = 0; word < words; ++word) {
    if (word > 0) utterance.words += ' ';
    for (std::uint32_t left = 2 + below(3); left > 0; --left) {
      letter = (letter + 1 + below(tone_letters - 1)) % tone_letters;
      utterance.words += static_cast<char>('A' + letter);
      sound(letter, random_at(key, 1000 + draw), utterance.frames);
    }
    sound(tone_letters, random_at(key, 1000 + ++draw), utterance.frames);
  }
  return utterance;
}

}  // namespace

std::unique_ptr<Data> make_speech(Speech speech) {
  const Alphabet alphabet(speech);
  auto train = examples_of(std::move(speech.train), alphabet, speech.channels);
  auto test = examples_of(std::move(speech.test), alphabet, speech.channels);
  return std::make_unique<SpeechData>(std::move(train), std::move(test), speech.channels,
                                      alphabet.classes());
}

std::unique_ptr<Data> open_tones() {
  constexpr std::uint64_t train = 512, test = 64;
  Speech speech{tone_channels, {}, {}};
  for (std::uint64_t i = 0; i < train; ++i) speech.train.push_back(tones(i));
  for (std::uint64_t i = 0; i < test; ++i) speech.test.push_back(tones(train + i));
  return make_speech(std::move(speech));
}

}  // namespace thinwire::train
