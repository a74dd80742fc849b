// learner.cc: one worker's model and data in libtorch.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/learner.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn.h>
#include <torch/utils.h>

#include <algorithm>
#include <optional>

#include "apps/train/buckets.h"
#include "apps/train/data.h"
#include "apps/train/engine.h"
#include "apps/train/models.h"
#include "apps/verb.h"
#include "thinwire/core/error.h"
#include "thinwire/core/random.h"

namespace thinwire::train {
namespace {

constexpr std::int64_t test_batch = 128;

// While it lives, matrix products and convolutions compute in bf16. Weights stay f32: autocast
// keeps bf16 copies, which are dropped at the end, before the optimizer updates the weights.
class Bf16 {
 public:
  Bf16(bool on, torch::Device device) : on_(on), type_(device.type()) {
    if (!on_) return;
    at::autocast::set_autocast_dtype(type_, at::kBFloat16);
    at::autocast::set_autocast_enabled(type_, true);
    at::autocast::increment_nesting();
  }
  ~Bf16() {
    if (!on_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(type_, false);
  }
  Bf16(const Bf16&) = delete;
  Bf16& operator=(const Bf16&) = delete;

 private:
  bool on_;
  torch::DeviceType type_;
};

// Forces real f32 and deterministic convolutions: a GPU's defaults are neither.
torch::Device prepared(const Settings& settings, const Hardware& hardware) {
  if (!settings.cuda) return torch::kCPU;
  const torch::Device device(torch::kCUDA, static_cast<c10::DeviceIndex>(hardware.gpu));
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
  at::globalContext().setAllowTF32CuDNN(false);
  at::globalContext().setDeterministicCuDNN(true);
  return device;
}

// Replaces the tensor by its mean over the workers: a sum over the ranks divided by the number of
// workers. The same bits everywhere.
void average(Group& group, torch::Tensor& flat, int workers) {
  const Bytes bytes{reinterpret_cast<std::byte*>(flat.data_ptr<float>()),
                    static_cast<std::size_t>(flat.numel()) * sizeof(float)};
  group.all_reduce(bytes, DType::f32, ReduceOp::sum, {}).wait();
  flat.div_(workers);
}

std::span<float> host_span(const TensorView& view) {
  require_f32_cpu(view, view.count, "learner");
  return view.f32();
}

// If data or model reject their input, the user can fix it.
template <typename Make>
auto from_user(Make make) {
  try {
    return make();
  } catch (const Error& error) {
    throw apps::BadInput(error.what());
  }
}

}  // namespace

class Learner::Torch {
 public:
  Torch(const Settings& settings, Group& group, const Hardware& hardware, Seat seat)
      : settings_(settings),
        group_(group),
        workers_(settings.meeting.workers(group.size())),
        device_(prepared(settings, hardware)) {
    if (hardware.threads > 0) at::set_num_threads(hardware.threads);
    data_ = from_user([&] { return open_data(settings.data, settings.sequence); });
    model_ = from_user([&] { return make_model(settings.model, data_->problem(), settings.seed); });
    check_size();
    const bool by_class = settings.shares.kind == Partition::Kind::dirichlet;
    shares_ = from_user([&] {
      return Shares(settings.shares, data_->train_examples(),
                    by_class ? data_->train_classes() : std::vector<std::int64_t>{}, settings.seed,
                    workers_);
    });
    model_->to(device_);
    model_->train();
    const auto parameters = trainable(*model_);
    const auto bytes = static_cast<std::size_t>(settings.bucket_mb * 1e6);
    buckets_.emplace(parameters, common_order(parameters), bytes, seat);
  }

  bool language() const { return data_->problem().language; }

  std::uint64_t steps_per_epoch() const {
    const std::int64_t rounds = data_->train_examples() / (settings_.batch * workers_);
    return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(rounds) / settings_.accumulate);
  }

  Buckets& buckets() { return *buckets_; }

  double compute(std::uint64_t step, const Ready& ready, const Phase& phase) {
    buckets_->push_weights();
    buckets_->zero_gradients();
    // What dropout draws depends on the step alone, not on earlier steps, so a resumed run
    // continues exactly.
    const auto rank = static_cast<std::uint64_t>(group_.rank());
    torch::manual_seed(random_at(random_at(settings_.seed, step), rank));
    double sum = 0;
    for (std::uint64_t i = 0; i < settings_.accumulate; ++i) {
      if (i + 1 == settings_.accumulate) buckets_->watch(ready);
      sum += pass(step * settings_.accumulate + i, phase);
    }
    buckets_->release();
    return sum / static_cast<double>(settings_.accumulate);
  }

  Score evaluate() {
    buckets_->push_weights();
    const std::vector<torch::Tensor> own = average_buffers();
    model_->eval();
    std::vector<double> sums(3);  // loss, correct answers, questions
    {
      const torch::NoGradGuard no_grad;
      const std::int64_t batches = data_->test_batches(test_batch);
      for (std::int64_t i = group_.rank(); i < batches; i += group_.size()) add_score(i, sums);
    }
    model_->train();
    put_back(own);
    const std::vector<double> all = sum_over(group_, sums);
    return {all[0] / all[2], all[1] / all[2]};
  }

  void visit_buffers(StateVisitor& visitor) {
    for (auto& item : model_->named_buffers()) {
      torch::Tensor& tensor = item.value();
      if (tensor.scalar_type() == torch::kFloat) {
        const torch::Tensor host = tensor.cpu();  // no copy if it is on the host already
        visitor.tensor(item.key() + "/buffer", span_of(host), Share::local);
        tensor.copy_(host);
      } else if (tensor.scalar_type() == torch::kLong && tensor.numel() == 1) {  // a counter
        auto number = static_cast<double>(tensor.item<std::int64_t>());
        visitor.number(item.key() + "/buffer", number, Share::local);
        tensor.fill_(static_cast<std::int64_t>(number));
      }  // all others are constants of the model
    }
  }

 private:
  static std::span<float> span_of(const torch::Tensor& tensor) {
    return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
  }

  void check_size() const {
    const std::int64_t need = settings_.batch * workers_;
    if (data_->train_examples() >= need) return;
    throw apps::BadInput(
        "--batch " + std::to_string(settings_.batch) + " with " + std::to_string(workers_) +
        " workers needs " + std::to_string(need) + " examples per step, but " + settings_.data +
        " has " + std::to_string(data_->train_examples()) + " in total; give a smaller batch");
  }

  torch::Tensor loss_of(const torch::Tensor& logits, const torch::Tensor& target) const {
    const torch::Tensor rows = logits.reshape({-1, logits.size(-1)}).to(torch::kFloat);
    return torch::nn::functional::cross_entropy(rows, target.reshape({-1}));
  }

  Batch on_device(const Batch& batch) const {
    return {batch.input.to(device_), batch.target.to(device_)};
  }

  torch::Tensor forward(const Batch& examples) {
    const Batch batch = on_device(examples);
    const Bf16 guard(settings_.bf16, device_);
    return loss_of(model_->forward(batch.input), batch.target);
  }

  double pass(std::uint64_t index, const Phase& phase) {
    const auto start = std::chrono::steady_clock::now();
    const Batch batch = data_->train_batch_of(shares_->batch(index, group_.rank(), settings_.batch),
                                              {settings_.seed, index, group_.rank()});
    const torch::Tensor loss = forward(batch);
    const auto middle = std::chrono::steady_clock::now();
    phase("forward", start, middle);
    const torch::Tensor part =
        settings_.accumulate == 1 ? loss : loss / static_cast<double>(settings_.accumulate);
    part.backward();
    const auto value = loss.item<double>();  // waits for the GPU
    phase("backward", middle, std::chrono::steady_clock::now());
    return value;
  }

  // A backward pass of two examples reveals the order. Everything else that it changed is restored.
  std::vector<std::uint32_t> common_order(const std::vector<NamedParameter>& parameters) {
    std::vector<torch::Tensor> before;
    for (const torch::Tensor& buffer : model_->buffers()) before.push_back(buffer.clone());
    std::vector<std::uint32_t> order = arrival_order(parameters, [this] {
      const std::int64_t few = std::min<std::int64_t>(2, settings_.batch);
      forward(data_->train_batch(settings_.seed, 0, 0, workers_, few)).backward();
    });
    put_back(before);
    group_.broadcast(std::as_writable_bytes(std::span(order)), 0, {}).wait();
    return order;
  }

  void put_back(const std::vector<torch::Tensor>& values) {
    const torch::NoGradGuard no_grad;
    const std::vector<torch::Tensor> buffers = model_->buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(values[i]);
  }

  // Replaces every floating-point buffer by its mean over the workers. Returns the old values.
  std::vector<torch::Tensor> average_buffers() {
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> before, parts;
    for (const torch::Tensor& buffer : model_->buffers()) {
      before.push_back(buffer.clone());
      if (buffer.scalar_type() == torch::kFloat) parts.push_back(buffer.reshape({-1}));
    }
    if (parts.empty()) return before;
    torch::Tensor flat = torch::cat(parts).cpu();
    if (group_.rank() >= workers_) flat.zero_();  // a server has seen no data
    average(group_, flat, workers_);
    std::int64_t at = 0;
    for (const torch::Tensor& buffer : model_->buffers()) {
      if (buffer.scalar_type() != torch::kFloat) continue;
      buffer.copy_(flat.narrow(0, at, buffer.numel()).view(buffer.sizes()));
      at += buffer.numel();
    }
    return before;
  }

  void add_score(std::int64_t index, std::vector<double>& sums) {
    const Batch batch = on_device(data_->test_batch(index, test_batch));
    const Bf16 guard(settings_.bf16, device_);
    const torch::Tensor logits = model_->forward(batch.input);
    const auto questions = static_cast<double>(batch.target.numel());
    sums[0] += loss_of(logits, batch.target).item<double>() * questions;
    sums[1] += logits.argmax(-1).eq(batch.target).sum().item<double>();
    sums[2] += questions;
  }

  const Settings& settings_;
  Group& group_;
  int workers_;
  torch::Device device_;
  std::unique_ptr<Data> data_;
  std::optional<Shares> shares_;
  std::shared_ptr<Model> model_;
  std::optional<Buckets> buckets_;
};

Learner::Learner(const Settings& settings, Group& group, const Hardware& hardware, Seat seat)
    : torch_(std::make_unique<Torch>(settings, group, hardware, seat)) {}
Learner::~Learner() = default;

bool Learner::language() const { return torch_->language(); }
std::uint64_t Learner::steps_per_epoch() const { return torch_->steps_per_epoch(); }
const std::vector<Bucket>& Learner::buckets() const { return torch_->buckets().layout(); }
TensorView Learner::weights_view(std::size_t bucket) { return torch_->buckets().weights(bucket); }
TensorView Learner::gradient_view(std::size_t bucket) { return torch_->buckets().gradient(bucket); }
std::span<float> Learner::weights(std::size_t bucket) { return host_span(weights_view(bucket)); }
std::span<float> Learner::gradient(std::size_t bucket) { return host_span(gradient_view(bucket)); }
double Learner::compute(std::uint64_t step, const Ready& ready, const Phase& phase) {
  return torch_->compute(step, ready, phase);
}
Score Learner::evaluate() { return torch_->evaluate(); }
void Learner::visit_buffers(StateVisitor& visitor) { torch_->visit_buffers(visitor); }

std::string zoo_help() {
  const auto line = [](const std::string& name, const std::string& help) {
    const std::string gap(name.size() < 22 ? 22 - name.size() : 1, ' ');
    return "  " + name + gap + help + "\n";
  };
  std::string text = "Models:\n";
  for (const ModelInfo& model : models()) text += line(model.name, model.help);
  text += "\nData:\n";
  for (const auto& [name, help] : data_kinds()) text += line(name, help);
  return text;
}

}  // namespace thinwire::train
