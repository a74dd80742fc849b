// learner.cc: model and data in libtorch.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/learner.h"

#include <ATen/autocast_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn.h>
#include <torch/utils.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "apps/train/answers.h"
#include "apps/train/buckets.h"
#include "apps/train/clock.h"
#include "apps/train/crew.h"
#include "apps/train/data.h"
#include "apps/train/engine.h"
#include "apps/train/models.h"
#include "apps/train/replay.h"
#include "apps/verb.h"
#include "thinwire/comm/reduce.h"
#include "thinwire/core/error.h"
#include "thinwire/core/random.h"

namespace thinwire::train {
namespace {

constexpr std::int64_t test_batch = 128;

// torch's random numbers belong to the process. Who seeds them draws before others do.
std::mutex randomness;

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

using Tensors = std::vector<torch::Tensor>;

Bytes bytes_of(const torch::Tensor& flat) {
  return {reinterpret_cast<std::byte*>(flat.data_ptr<float>()),
          static_cast<std::size_t>(flat.numel()) * sizeof(float)};
}

// The sum over the ranks, `flats` of which are in this process. The same bits everywhere.
torch::Tensor sum_of(Group& group, const Tensors& flats) {
  torch::Tensor sum = torch::empty_like(flats[0]);
  std::vector<ConstBytes> parts;
  for (const torch::Tensor& flat : flats) parts.push_back(bytes_of(flat));
  reduce_ranks(parts, DType::f32, ReduceOp::sum, [&](std::size_t at, ConstBytes result) {
    std::ranges::copy(result, bytes_of(sum).subspan(at).begin());
  });
  group.all_reduce(bytes_of(sum), DType::f32, ReduceOp::sum, {}).wait();
  return sum;
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
        crew_(crew_of(settings, group)),
        rank_(crew_.begin),
        device_(prepared(settings, hardware)),
        seat_(seat) {
    if (hardware.threads > 0) at::set_num_threads(hardware.threads);
    data_ = from_user([&] { return open_data(settings.data, settings.sequence); });
    model_ = from_user([&] {
      const std::lock_guard lock(randomness);
      return make_model(settings.model, data_->problem(), settings.seed);
    });
    check_size();
    const bool by_class = settings.shares.kind == Partition::Kind::dirichlet;
    shares_ = from_user([&] {
      return Shares(settings.shares, data_->train_examples(),
                    by_class ? data_->train_classes() : std::vector<std::int64_t>{}, settings.seed,
                    crew_.workers);
    });
    model_->to(device_);
    model_->train();
    const auto parameters = trainable(*model_);
    const auto bytes = static_cast<std::size_t>(settings.bucket_mb * 1e6);
    const auto memories = crew_.size() > 1 ? static_cast<std::size_t>(crew_.workers) : 1;
    buckets_.emplace(parameters, common_order(parameters), bytes, seat, memories);
    for (std::size_t i = 0; i < crew_.size(); ++i) buffers_.push_back(i == 0 ? in_use() : clones());
    tapes_.resize(crew_.size());
    for (const auto& module : model_->modules(/*include_self=*/false))
      draws_ = draws_ || module->as<torch::nn::Dropout>() != nullptr;
  }

  void turn_to(int rank) {
    if (rank == rank_) return;
    rank_ = rank;
    if (!crew_.serves(rank)) buckets_->choose_memory(crew_.place(rank));
  }
  int rank() const { return rank_; }

  Domain domain() const { return data_->problem().domain; }

  std::uint64_t steps_per_epoch() const {
    const std::int64_t rounds = data_->train_examples() / (settings_.batch * crew_.workers);
    return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(rounds) / settings_.accumulate);
  }

  Buckets& buckets() { return *buckets_; }

  Computed compute(std::uint64_t step, const Ready& ready, const Phase& phase) {
    std::unique_lock lock(randomness, std::defer_lock);
    if (seat_ == Seat::host) lock.lock();  // in streams `ready` may wait for other ranks
    const auto start = Clock::now();
    if (rank_ == crew_.begin) {
      buckets_->push_weights();  // the others share them
      start_together(step);
    }
    if (tape().started) return finish_started(ready, phase);
    buckets_->zero_gradients();
    if (crew_.size() > 1) use_buffers();
    // What dropout draws depends on the step alone, not on earlier steps, so a resumed run
    // continues exactly.
    const auto rank = static_cast<std::uint64_t>(rank_);
    torch::manual_seed(random_at(random_at(settings_.seed, step), rank));
    double sum = 0;
    for (std::uint64_t i = 0; i < settings_.accumulate; ++i) {
      const Ready* const last = i + 1 == settings_.accumulate ? &ready : nullptr;
      sum += pass(step * settings_.accumulate + i, last, phase);
    }
    return {sum / static_cast<double>(settings_.accumulate), seconds(start, Clock::now())};
  }

  Score evaluate() {
    buckets_->push_weights();
    const Tensors own = average_buffers();
    model_->eval();
    std::vector<double> sums(4);  // as in Count
    for (int rank = crew_.begin; rank < crew_.end; ++rank) add(sums, sums_of_share(rank));
    model_->train();
    put_back(own);
    const std::vector<double> all = sum_over(group_, sums);
    return {all[0] / all[1], all[2] / all[3]};
  }

  void visit_buffers(StateVisitor& visitor) {
    const auto names = model_->named_buffers().keys();
    for (std::size_t i = 0; i < names.size(); ++i) {
      torch::Tensor& tensor = buffers_[crew_.place(rank_)][i];
      if (tensor.scalar_type() == torch::kFloat) {
        const torch::Tensor host = tensor.cpu();  // no copy if it is on the host already
        visitor.tensor(names[i] + "/buffer", span_of(host), Share::local);
        tensor.copy_(host);
      } else if (tensor.scalar_type() == torch::kLong && tensor.numel() == 1) {  // a counter
        auto number = static_cast<double>(tensor.item<std::int64_t>());
        visitor.number(names[i] + "/buffer", number, Share::local);
        tensor.fill_(static_cast<std::int64_t>(number));
      }  // all others are constants of the model
    }
  }

 private:
  static std::span<float> span_of(const torch::Tensor& tensor) {
    return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
  }

  void check_size() const {
    const std::int64_t need = settings_.batch * crew_.workers;
    if (data_->train_examples() >= need) return;
    throw apps::BadInput(
        "--batch " + std::to_string(settings_.batch) + " with " + std::to_string(crew_.workers) +
        " workers needs " + std::to_string(need) + " examples per step, but " + settings_.data +
        " has " + std::to_string(data_->train_examples()) + " in total; give a smaller batch");
  }

  Batch on_device(const Batch& batch) const {
    return {batch.input.to(device_), batch.target.to(device_), batch.frames, batch.characters};
  }

  torch::Tensor forward(const Batch& examples) {
    const Batch batch = on_device(examples);
    const Bf16 guard(settings_.bf16, device_);
    return loss_of(domain(), model_->answer(batch), batch);
  }

  // With `ready` it is the last pass of the step.
  double pass(std::uint64_t index, const Ready* ready, const Phase& phase) {
    const auto start = Clock::now();
    const Batch batch = data_->train_batch_of(shares_->batch(index, rank_, settings_.batch),
                                              {settings_.seed, index, rank_});
    if (recorded(batch)) {
      start_tape(tape(), batch);
      const double value = finish_tape(ready);
      phase("forward, backward", start, Clock::now());
      return value;
    }
    const torch::Tensor loss = forward(batch);
    const auto middle = Clock::now();
    phase("forward", start, middle);
    if (ready != nullptr) buckets_->watch(*ready);
    backward(loss);
    const auto value = loss.item<double>();  // waits for the GPU
    phase("backward", middle, Clock::now());
    if (ready != nullptr) buckets_->release();
    return value;
  }

  void backward(const torch::Tensor& loss) const {
    const torch::Tensor part =
        settings_.accumulate == 1 ? loss : loss / static_cast<double>(settings_.accumulate);
    part.backward();
  }

  // A recorded pass of one virtual worker, who has buffers and gradients of its own.
  struct Tape {
    bool warm = false;  // libraries are set up in the first pass
    bool started = false;
    Batch batch;  // what it computes with
    torch::Tensor loss;
    std::unique_ptr<Replay> pass;
  };

  Tape& tape() { return tapes_[crew_.place(rank_)]; }

  // Whether this worker's pass is on a tape; if it can be, it is from the second pass on. One
  // worker of a process starts its kernels itself, so that the exchange overlaps backward; text and
  // speech do, because they may wait for the GPU on the way.
  bool recorded(const Batch& batch) {
    if (crew_.size() == 1 || device_.is_cpu() || domain() != Domain::images) return false;
    if (!std::exchange(tape().warm, true)) return false;
    if (tape().pass) return true;
    tape().batch = on_device(batch);
    tape().pass = record([this] {
      if (settings_.accumulate == 1) buckets_->zero_gradients();
      const torch::Tensor loss = forward(tape().batch);
      backward(loss);
      tape().loss = loss.detach();
    });
    return tape().pass != nullptr;
  }

  void start_tape(Tape& tape, const Batch& batch) {
    tape.pass->start([&] {
      tape.batch.input.copy_(batch.input);
      tape.batch.target.copy_(batch.target);
    });
  }

  double finish_tape(const Ready* ready) {
    tape().pass->join();
    if (ready != nullptr) {
      buckets_->watch(*ready);
      buckets_->release();
    }
    return tape().loss.item<double>();
  }

  // Starts the tapes of all workers at once, which share the GPU. Not where the time of one worker
  // alone is asked for, or where random numbers must come in the order of the workers.
  void start_together(std::uint64_t step) {
    if (!settings_.link.empty() || settings_.accumulate > 1 || draws_) return;
    together_ = Clock::now();
    for (int rank = crew_.begin; rank < crew_.end; ++rank) {
      Tape& tape = tapes_[crew_.place(rank)];
      if (!tape.pass) continue;
      start_tape(tape, data_->train_batch_of(shares_->batch(step, rank, settings_.batch),
                                             {settings_.seed, step, rank}));
      tape.started = true;
    }
  }

  // Its time is that since all were started: workers slow each other down.
  Computed finish_started(const Ready& ready, const Phase& phase) {
    tape().started = false;
    const double loss = finish_tape(&ready);
    const auto now = Clock::now();
    phase("forward, backward", together_, now);
    return {loss, seconds(together_, now)};
  }

  // A backward pass of two examples reveals the order. Everything else that it changed is restored.
  std::vector<std::uint32_t> common_order(const std::vector<NamedParameter>& parameters) {
    const Tensors before = clones();
    std::vector<std::uint32_t> order = arrival_order(parameters, [this] {
      const std::lock_guard lock(randomness);
      const std::int64_t few = std::min<std::int64_t>(2, settings_.batch);
      forward(data_->train_batch(settings_.seed, 0, 0, crew_.workers, few)).backward();
    });
    put_back(before);
    group_.broadcast(std::as_writable_bytes(std::span(order)), 0, {}).wait();
    return order;
  }

  Tensors clones() const {
    Tensors values;
    for (const torch::Tensor& buffer : model_->buffers()) values.push_back(buffer.clone());
    return values;
  }

  // The model's own memory.
  Tensors in_use() const {
    Tensors values;
    for (const torch::Tensor& buffer : model_->buffers()) values.push_back(buffer.detach());
    return values;
  }

  // From now on the model computes with the buffers of this rank.
  void use_buffers() {
    const Tensors buffers = model_->buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i)
      buffers[i].set_data(buffers_[crew_.place(rank_)][i]);
  }

  void put_back(const Tensors& values) {
    const torch::NoGradGuard no_grad;
    const Tensors buffers = model_->buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(values[i]);
  }

  // The floating-point buffers of a rank, as one.
  torch::Tensor flat_buffers(int rank) const {
    Tensors parts;
    for (const torch::Tensor& buffer : buffers_[crew_.place(rank)])
      if (buffer.scalar_type() == torch::kFloat) parts.push_back(buffer.reshape({-1}));
    if (parts.empty()) return torch::empty({0});
    const torch::Tensor flat = torch::cat(parts).cpu();
    return crew_.serves(rank) ? torch::zeros_like(flat) : flat;  // a server has seen no data
  }

  // Replaces every floating-point buffer by its mean over the workers. Returns the old values.
  Tensors average_buffers() {
    const torch::NoGradGuard no_grad;
    Tensors before = clones(), flats;
    for (int rank = crew_.begin; rank < crew_.end; ++rank) flats.push_back(flat_buffers(rank));
    if (flats[0].numel() == 0) return before;
    const torch::Tensor mean = sum_of(group_, flats).div_(crew_.workers);
    std::int64_t at = 0;
    for (const torch::Tensor& buffer : model_->buffers()) {
      if (buffer.scalar_type() != torch::kFloat) continue;
      buffer.copy_(mean.narrow(0, at, buffer.numel()).view(buffer.sizes()));
      at += buffer.numel();
    }
    return before;
  }

  std::vector<double> sums_of_share(int rank) {
    const torch::NoGradGuard no_grad;
    std::vector<double> sums(4);
    const std::int64_t batches = data_->test_batches(test_batch);
    for (std::int64_t i = rank; i < batches; i += crew_.world) add_score(i, sums);
    return sums;
  }

  void add_score(std::int64_t index, std::vector<double>& sums) {
    const Batch batch = on_device(data_->test_batch(index, test_batch));
    const Bf16 guard(settings_.bf16, device_);
    const Count count = count_answers(domain(), model_->answer(batch), batch);
    sums[0] += count.loss;
    sums[1] += count.examples;
    sums[2] += count.right;
    sums[3] += count.questions;
  }

  const Settings& settings_;
  Group& group_;
  const Crew crew_;
  int rank_;  // whose turn it is
  torch::Device device_;
  Seat seat_;
  std::unique_ptr<Data> data_;
  std::optional<Shares> shares_;
  std::shared_ptr<Model> model_;
  std::optional<Buckets> buckets_;
  std::vector<Tensors> buffers_;  // by rank of the crew
  std::vector<Tape> tapes_;       // likewise
  bool draws_ = false;            // whether the model draws random numbers
  Time together_;                 // when the tapes of this step were started
};

Learner::Learner(const Settings& settings, Group& group, const Hardware& hardware, Seat seat)
    : torch_(std::make_unique<Torch>(settings, group, hardware, seat)) {}
Learner::~Learner() = default;

void Learner::turn_to(int rank) { torch_->turn_to(rank); }
int Learner::rank() const { return torch_->rank(); }
Domain Learner::domain() const { return torch_->domain(); }
std::uint64_t Learner::steps_per_epoch() const { return torch_->steps_per_epoch(); }
const std::vector<Bucket>& Learner::buckets() const { return torch_->buckets().layout(); }
TensorView Learner::weights_view(std::size_t bucket) { return torch_->buckets().weights(bucket); }
TensorView Learner::gradient_view(std::size_t bucket) { return torch_->buckets().gradient(bucket); }
std::span<float> Learner::weights(std::size_t bucket) { return host_span(weights_view(bucket)); }
std::span<float> Learner::gradient(std::size_t bucket) { return host_span(gradient_view(bucket)); }
Learner::Computed Learner::compute(std::uint64_t step, const Ready& ready, const Phase& phase) {
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
