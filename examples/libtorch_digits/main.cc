// main.cc: a libtorch program whose workers average their gradients through thinwire.
//
//     torchrun --no-python --nproc-per-node 4 libtorch_digits dgc:density=0.01 data/digits.csv
//
// It needs three things: the gradients of all parameters in one flat tensor, an Exchange over the
// job's group, and submit() and finish() between backward and step.
// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <sstream>
#include <string>

#include "thinwire/comm/c10d/c10d.h"
#include "thinwire/thinwire.h"

namespace {

int from_environment(const char* name, int fallback) {
  const char* value = std::getenv(name);
  return value ? std::atoi(value) : fallback;
}

thinwire::Rendezvous rendezvous() {
  thinwire::Rendezvous at;
  if (const char* host = std::getenv("MASTER_ADDR")) at.host = host;
  at.port = static_cast<std::uint16_t>(from_environment("MASTER_PORT", 0));
  at.rank = from_environment("RANK", 0);
  at.world = from_environment("WORLD_SIZE", 1);
  return at;
}

struct Digits {
  torch::Tensor images, labels;
};

Digits load(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    thinwire::fail("cannot open '", path, "'; `make setup` puts the digits at data/digits.csv");
  std::vector<float> numbers;
  for (std::string line, cell; std::getline(file, line);)
    for (std::istringstream row(line); std::getline(row, cell, ',');)
      numbers.push_back(std::stof(cell));
  const auto all = torch::tensor(numbers).view({-1, 65});
  return {all.narrow(1, 0, 64) / 8 - 1, all.select(1, 64).to(torch::kLong)};
}

// The gradients as views of one flat tensor, which the exchange averages.
torch::Tensor flatten_gradients(const std::vector<torch::Tensor>& parameters) {
  std::int64_t elements = 0, at = 0;
  for (const auto& parameter : parameters) elements += parameter.numel();
  torch::Tensor flat = torch::zeros({elements});
  for (const auto& parameter : parameters) {
    parameter.mutable_grad() = flat.narrow(0, at, parameter.numel()).view(parameter.sizes());
    at += parameter.numel();
  }
  return flat;
}

thinwire::Bucket bucket_of(const torch::nn::Module& model) {
  thinwire::Bucket bucket;
  for (const auto& item : model.named_parameters()) {
    const auto sizes = item.value().sizes();
    bucket.parameters.push_back({item.key(),
                                 bucket.elements(),
                                 static_cast<std::size_t>(item.value().numel()),
                                 {sizes.begin(), sizes.end()}});
  }
  return bucket;
}

void train(const std::string& scheme, const std::string& path, int steps) {
  const auto group = thinwire::make_gloo_group(rendezvous());
  const auto [images, labels] = load(path);
  torch::manual_seed(1);  // the same initial weights everywhere
  torch::nn::Sequential model(torch::nn::Linear(64, 100), torch::nn::ReLU(),
                              torch::nn::Linear(100, 10));
  torch::Tensor gradient = flatten_gradients(model->parameters());
  // dgc has momentum inside. For a scheme without it, give the optimizer momentum.
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  thinwire::Exchange exchange(*group, {bucket_of(*model)}, thinwire::Config::parse(scheme));

  torch::manual_seed(100 + static_cast<std::uint64_t>(group->rank()));  // examples differ
  for (int step = 0; step < steps; ++step) {
    const auto chosen = torch::randint(images.size(0), {32}, torch::kLong);
    gradient.zero_();
    const auto logits = model->forward(images.index_select(0, chosen));
    torch::nn::functional::cross_entropy(logits, labels.index_select(0, chosen)).backward();
    exchange.submit(
        0, std::span(gradient.data_ptr<float>(), static_cast<std::size_t>(gradient.numel())));
    if (!exchange.finish().skipped) optimizer.step();
  }
  const torch::NoGradGuard no_grad;
  const auto right =
      model->forward(images).argmax(1).eq(labels).to(torch::kFloat).mean().item<double>();
  if (group->rank() == 0)
    std::printf("%s: accuracy %.4f after %d steps, %d workers, 1/%.0f of the bytes\n",
                scheme.c_str(), right, steps, group->size(), exchange.report().ratio());
  group->barrier().wait();
}

}  // namespace

int main(int count, char** words) {
  const std::string scheme = count > 1 ? words[1] : "dgc:density=0.01";
  const std::string path = count > 2 ? words[2] : "data/digits.csv";
  try {
    train(scheme, path, count > 3 ? std::atoi(words[3]) : 150);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
