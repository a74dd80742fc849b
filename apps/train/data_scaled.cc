// data_scaled.cc: the images of another data set, scaled to another size, so that networks for
// large images can train on small ones.
// SPDX-License-Identifier: Apache-2.0
#include <charconv>

#include "apps/train/data_kinds.h"
#include "thinwire/core/error.h"

namespace thinwire::train {
namespace {

class ScaledImages : public Data {
 public:
  ScaledImages(std::unique_ptr<Data> images, std::int64_t size)
      : images_(std::move(images)), size_(size) {}

  Problem problem() const override {
    Problem problem = images_->problem();
    problem.height = problem.width = size_;
    return problem;
  }
  std::int64_t train_examples() const override { return images_->train_examples(); }

  std::vector<std::int64_t> train_classes() const override { return images_->train_classes(); }

  Batch train_batch_of(const std::vector<std::int64_t>& examples, const Draw& draw) const override {
    return scaled(images_->train_batch_of(examples, draw));
  }

  std::int64_t test_batches(std::int64_t batch) const override {
    return images_->test_batches(batch);
  }
  Batch test_batch(std::int64_t index, std::int64_t batch) const override {
    return scaled(images_->test_batch(index, batch));
  }

 private:
  Batch scaled(Batch batch) const {
    namespace F = torch::nn::functional;
    batch.input = F::interpolate(batch.input, F::InterpolateFuncOptions()
                                                  .size(std::vector<std::int64_t>{size_, size_})
                                                  .mode(torch::kBilinear)
                                                  .align_corners(false));
    return batch;
  }

  std::unique_ptr<Data> images_;
  std::int64_t size_;
};

}  // namespace

std::unique_ptr<Data> open_scaled(const std::string& argument, std::int64_t sequence) {
  constexpr std::int64_t largest = 4096;
  std::int64_t size = 0;
  const char* const end = argument.data() + argument.size();
  const auto [next, error] = std::from_chars(argument.data(), end, size);
  if (error != std::errc{} || next == end || *next != ':' || size < 1 || size > largest) {
    fail("data 'scaled:", argument, "': expected a size from 1 to ", largest,
         " and other data; write for example scaled:224:cifar10:DIR");
  }
  std::unique_ptr<Data> images = open_data(std::string(next + 1, end), sequence);
  if (images->problem().domain != Domain::images) {
    fail("data 'scaled:", argument, "': expected images, got ", name_of(images->problem().domain),
         "; leave out scaled:", size, ":");
  }
  return std::make_unique<ScaledImages>(std::move(images), size);
}

}  // namespace thinwire::train
