// models.cc: the table of models, which problems each model fits, and weights that follow
// from the seed.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/models.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <mutex>
#include <sstream>

#include "apps/nearest.h"
#include "apps/train/models_zoo.h"
#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

struct Entry {
  ModelInfo info;
  std::int64_t smallest;  // smallest image, in pixels each way
  std::shared_ptr<Model> (*make)(const Problem&);
};

const std::vector<Entry>& entries() {
  static const std::vector<Entry> entries = {
      {{"mlp", "two hidden layers of 300, for any image", Domain::images, "digits", false},
       1,
       make_mlp},
      {{"cnn", "3x3 convolutions of 32 and 64, a layer of 128; 0.42M parameters at 28x28",
        Domain::images, "synthetic:1x28x28:10", false},
       4,
       make_cnn},
      {{"resnet20", "He et al. for CIFAR, 0.27M parameters, shortcuts without weights",
        Domain::images, "synthetic:3x32x32:10", false},
       8,
       make_resnet20},
      {{"resnet110", "the same with 110 layers, 1.7M parameters", Domain::images,
        "synthetic:3x32x32:10", false},
       8,
       make_resnet110},
      {{"resnet18", "the later form for CIFAR, 64 to 512 channels, 11.2M parameters",
        Domain::images, "synthetic:3x32x32:10", false},
       8,
       make_resnet18},
      {{"resnet50", "He et al. for ImageNet, 25.6M parameters at 1000 classes", Domain::images,
        "synthetic:3x224x224:1000", true},
       32,
       make_resnet50},
      {{"alexnet", "Krizhevsky, one tower, 61.1M parameters at 1000 classes", Domain::images,
        "synthetic:3x224x224:1000", true},
       63,
       make_alexnet},
      {{"vgg16", "Simonyan and Zisserman, 138.4M parameters at 1000 classes", Domain::images,
        "synthetic:3x224x224:1000", true},
       32,
       make_vgg16},
      {{"lstm", "two layers of 200", Domain::text, "stdlib", false}, 0, make_lstm},
      {{"lstm650", "two layers of 650, dropout 0.5, 20M parameters at 10,000 words", Domain::text,
        "stdlib", false},
       0,
       make_lstm650},
      {{"lstm1500", "two layers of 1500, dropout 0.65, 66M parameters at 10,000 words",
        Domain::text, "stdlib", true},
       0,
       make_lstm1500},
      {{"transformer", "decoder of 4 layers, 128 wide, 4 heads, up to 1024 tokens", Domain::text,
        "stdlib", false},
       0,
       make_transformer},
      {{"speech", "five bidirectional LSTMs of 256 for CTC, 5.5M parameters", Domain::speech,
        "tones", false},
       0,
       make_recognizer},
  };
  return entries;
}

bool fits(const Entry& entry, const Problem& problem) {
  return entry.info.domain == problem.domain &&
         (problem.domain != Domain::images ||
          std::min(problem.height, problem.width) >= entry.smallest);
}

template <typename Predicate>
std::string names(Predicate wanted) {
  std::ostringstream text;
  for (const Entry& entry : entries()) {
    if (wanted(entry)) text << (text.tellp() > 0 ? ", " : "") << entry.info.name;
  }
  return text.str();
}

const Entry& entry_of(const std::string& name) {
  for (const Entry& entry : entries()) {
    if (entry.info.name == name) return entry;
  }
  std::vector<std::string> known;
  for (const Entry& entry : entries()) known.push_back(entry.info.name);
  fail("unknown model '", name, "'; known are ", names([](const Entry&) { return true; }),
       apps::did_you_mean(name, known));
}

void check_fits(const Entry& entry, const Problem& problem) {
  if (fits(entry, problem)) return;
  const std::string fitting = names([&](const Entry& other) { return fits(other, problem); });
  if (entry.info.domain != problem.domain) {
    fail("model '", entry.info.name, "' reads ", name_of(entry.info.domain), ", but the data is ",
         name_of(problem.domain), "; for this data use one of ", fitting);
  }
  fail("model '", entry.info.name, "' needs images of at least ", entry.smallest, "x",
       entry.smallest, ", but the data has ", problem.height, "x", problem.width,
       "; for this data use one of ", fitting);
}

void check_problem(const Problem& problem) {
  if (problem.classes < 1) fail("expected at least one class, got ", problem.classes);
  if (problem.domain == Domain::text) return;
  if (problem.channels < 1 || problem.height < 1 || problem.width < 1) {
    fail("expected an image of at least 1x1x1, got ", problem.channels, "x", problem.height, "x",
         problem.width);
  }
}

// torch's layers draw only from the default generator. This seeds it and restores it afterwards, so
// that making a model has no side effect.
class SeededGenerator {
 public:
  explicit SeededGenerator(std::uint64_t seed) : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~SeededGenerator() {
    const std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }
  SeededGenerator(const SeededGenerator&) = delete;
  SeededGenerator& operator=(const SeededGenerator&) = delete;

 private:
  at::Generator generator_;
  torch::Tensor state_;
};

}  // namespace

const std::vector<ModelInfo>& models() {
  static const std::vector<ModelInfo> infos = [] {
    std::vector<ModelInfo> all;
    for (const Entry& entry : entries()) all.push_back(entry.info);
    return all;
  }();
  return infos;
}

std::shared_ptr<Model> make_model(const std::string& name, const Problem& problem,
                                  std::uint64_t seed) {
  const Entry& entry = entry_of(name);
  check_problem(problem);
  check_fits(entry, problem);
  const SeededGenerator seeded(seed);
  return entry.make(problem);
}

}  // namespace thinwire::train
