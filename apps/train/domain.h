// domain.h: what data can be, and what people compare in each. No torch here.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace thinwire::train {

enum class Domain { images, text, speech };

// Results on the test set.
struct Score {
  double loss = 0;      // mean per image, token or utterance
  double accuracy = 0;  // share of correct answers; of speech 1 - word error rate, perhaps negative
};

inline const char* name_of(Domain domain) {
  return domain == Domain::images ? "images" : domain == Domain::text ? "text" : "speech";
}

// The key under which rows and JSON have it.
inline const char* measure_of(Domain domain) {
  return domain == Domain::images ? "accuracy"
         : domain == Domain::text ? "perplexity"
                                  : "word_error";
}

}  // namespace thinwire::train
