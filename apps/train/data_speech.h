// data_speech.h: utterances as data: features of each frame, and the characters that are spoken.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/train/data.h"

namespace thinwire::train {

struct Utterance {
  std::string name;
  std::vector<float> frames;  // `channels` numbers each, frame after frame
  std::string words;          // with a space between two words
};

struct Speech {
  std::int64_t channels = 13;
  std::vector<Utterance> train, test;
};

// Numbers the characters, and scales every channel of every utterance to mean 0 and variance 1.
// Throws an Error for an utterance without words, or with too few frames for its characters.
std::unique_ptr<Data> make_speech(Speech speech);

}  // namespace thinwire::train
