// attachment.cc: an attachment during a step, and when DDP cuts its buckets anew.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/attachment.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <utility>

#include <torch/csrc/autograd/graph_task.h>

#include "thinwire/compress/registry.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/agreement.h"
#include "thinwire/torch/state.h"

namespace thinwire::ddp {
namespace {

// Number of steps after a load in which DDP's first cut may differ from the loaded one. DDP adopts
// the loaded cut by itself after its first step, or after its second with a static graph.
constexpr int patience = 4;

const void* identity(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl(); }

std::vector<const void*> identities(const std::vector<at::Tensor>& tensors) {
  std::vector<const void*> result;
  result.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) result.push_back(identity(tensor));
  return result;
}

// Thresholds and norms of buckets mean nothing in another cut.
bool is_of_bucket(const std::string& name) {
  constexpr std::string_view start = "bucket";
  return name.starts_with(start) && name.size() > start.size() &&
         std::isdigit(static_cast<unsigned char>(name[start.size()]));
}

bool in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

// Momentum that has an effect: an explicit 0 switches it off.
bool accumulates(const Config& config) {
  const auto given = config.options.find("momentum");
  return keeps_momentum(config) && (given == config.options.end() || std::stod(given->second) != 0);
}

void drop_buckets(State& state) {
  std::erase_if(state, [](const auto& item) {
    return item.second.share != Share::summed && is_of_bucket(item.first);
  });
}

}  // namespace

Attachment::Attachment(Connections connections,
                       std::vector<std::pair<std::string, at::Tensor>> names,
                       AttachmentOptions options)
    : connections_(std::move(connections)),
      parameters_(std::move(names)),
      options_(std::move(options)) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) index_[identity(parameters_[i].second)] = i;
}

Attachment::~Attachment() = default;

std::string Attachment::where() const {
  return "rank " + std::to_string(connections_.group->rank());
}

void Attachment::submit(c10d::GradBucket& bucket, const std::optional<Usage>& usage) {
  if (bucket.getIndex() == 0) {
    settle();  // also of a rank that has joined early and never asked for it
    ask_factors();
  }
  const std::lock_guard lock(mutex_);
  const std::size_t index = bucket.getIndex();
  const at::Tensor& gradient = bucket.getBuffer();
  check(gradient, index);
  if (index == 0) {
    check_single();
    begin(gradient);
    watching_ = accumulates(options_.config) && !held_.watches() && in_backward();
  }
  if (watching_)
    for (const at::Tensor& parameter : bucket.getParameters()) held_.watch(parameter);
  Seen seen{identities(bucket.getParameters()), gradient};
  if (arrived_.size() != index)
    fail(where(), ": expected bucket ", arrived_.size(), ", got ", index);
  if (settled_ && (index >= identities_.size() || identities_[index] != seen.parameters))
    fail(where(), ", bucket ", index,
         ": DDP has cut its buckets anew in mid-run; attach to the model again");
  if (usage) unused_.look(*usage, seen.parameters, gradient);
  arrived_.push_back(std::move(seen));
  under_way_ = true;
  whole_ = bucket.isLast();
  if (settled_) hand_over(index, gradient);
  if (!settled_ && bucket.isLast()) arrange();
  if (usage && bucket.isLast())
    unused_.ask(*usage, connections_.process_group.get(), gradient.device());
}

void Attachment::check(const at::Tensor& gradient, std::size_t bucket) const {
  if (gradient.is_sparse())
    fail(where(), ", bucket ", bucket, ": expected dense gradients, got sparse ones; make the ",
         "Embedding or EmbeddingBag with sparse=False");
  if (!gradient_type(gradient.scalar_type()) || !(gradient.is_cpu() || gradient.is_cuda()) ||
      !gradient.is_contiguous())
    fail(where(), ", bucket ", bucket,
         ": expected gradients of float32, bfloat16 or float16 on the CPU or on CUDA, got ",
         gradient.toString(), "; keep parameters in float32 (autocast does)");
  if (gradient.device() != connections_.device)
    fail(where(), ", bucket ", bucket, ": its gradients are on ", gradient.device().str(),
         ", and were on ", connections_.device.str(), " when the model was attached; keep a model",
         " on one device");
}

// Called before anything of the step is sent. Outside of a backward, a rank that has joined early
// submits zeros, whatever its own gradients are.
void Attachment::check_single() const {
  if (!accumulates(options_.config) || !in_backward()) return;
  const void* const parameter = held_.first();
  if (parameter == nullptr) return;
  fail(where(), ", parameter '", parameters_[index_.at(parameter)].first,
       "': .grad still holds the average of the last backward, and scheme '", options_.config.str(),
       "' would apply its momentum to that again; run all but the last ",
       "backward of a step under model.no_sync(), and call zero_grad() before the next step");
}

void Attachment::begin(const at::Tensor& first) {
  arrived_.clear();
  unused_.clear();
  staging_.reset();
  if (!first_.defined() || first_.const_data_ptr() != first.const_data_ptr()) settled_ = false;
  first_ = first;
  if (renewed_ && settled_) renew(buckets_, true);
  follow_scale();
  if (settled_) apply_factors();
}

// Called with all buckets of a step at hand.
void Attachment::arrange() {
  const bool first = seen_.empty();
  if (first && parameters_.empty()) name_parameters();
  const std::vector<Bucket> now = buckets_seen();
  const bool anew = !first && names_of(now) != names_of(seen_);
  seen_ = now;
  identities_.clear();
  for (const Seen& one : arrived_) identities_.push_back(one.parameters);
  if (anew || staged_ == patience) loaded_layout_.clear();
  std::vector<Bucket> wanted = arranged(now, loaded_layout_);
  if (wanted.empty()) {
    wanted = now;
    if (first) drop_buckets(loaded_);
  } else {
    ++staged_;
  }
  const bool same_cut = buckets_.empty() || names_of(wanted) == names_of(buckets_);
  if (!courier_ || !same_cut || renewed_) renew(wanted, same_cut);
  settled_ = names_of(buckets_) == names_of(now);
  apply_factors();
  launch();
}

// A new courier takes over what the last one, or the last load, has left.
void Attachment::renew(const std::vector<Bucket>& buckets, bool same_cut) {
  State state = std::exchange(loaded_, {});
  if (courier_) {
    state = saved();
    retire();
  }
  if (!same_cut) drop_buckets(state);
  orders_ = seen_orders_;
  orders_.by_memory(state);
  // Ranks can differ in it only after a load, and then all of them come here.
  check_agreement(*connections_.group, buckets,
                  options_.config.str() + ", after " + std::to_string(last_.number) + " steps");
  courier_ = make_courier(connections_, buckets, options_.config, options_.exchange);
  buckets_ = buckets;
  renewed_ = false;
  Transfer transfer(state);
  courier_->visit_state(transfer);
  owed_ = transfer.owed(buckets, connections_.group->size());
  Deposit deposit(owed_);
  courier_->visit_state(deposit);
  if (const auto scale = state.find(scale_entry); scale != state.end())
    last_scale_ = scale->second.number;
  follow_scale();
}

void Attachment::retire() {
  if (courier_) retired_ = combine(retired_, courier_->report(), 1);
  courier_.reset();
}

void Attachment::launch() {
  std::vector<at::Tensor> gradients;
  for (const Seen& one : arrived_) gradients.push_back(one.gradient);
  if (names_of(buckets_) != names_of(seen_)) {
    staging_.emplace(buckets_, connections_.device);
    staging_->take(seen_, gradients);
    gradients = staging_->tensors();
  }
  for (std::size_t i = 0; i < gradients.size(); ++i) hand_over(i, gradients[i]);
}

void Attachment::hand_over(std::size_t bucket, const at::Tensor& gradient) {
  if (!owed_.empty()) pay(buckets_[bucket], gradient);
  courier_->submit(bucket, gradient);
}

void Attachment::pay(const Bucket& bucket, const at::Tensor& gradient) {
  for (const Parameter& parameter : bucket.parameters) {
    const auto found = owed_.find(parameter.name);
    if (found == owed_.end() || found->second.size() != parameter.count) continue;
    slice_of(gradient, parameter).add_(tensor_over(found->second).to(gradient.device()));
  }
}

// DDP's first cut has the parameters in the reverse of the model's order.
void Attachment::name_parameters() {
  std::size_t place = 0;
  for (const Seen& one : arrived_) place += one.parameters.size();
  for (const Seen& one : arrived_)
    for (const void* parameter : one.parameters) {
      index_[parameter] = parameters_.size();
      parameters_.emplace_back("parameter" + std::to_string(--place), at::Tensor());
    }
}

std::vector<Bucket> Attachment::buckets_seen() {
  std::vector<Bucket> buckets;
  for (const Seen& one : arrived_) {
    Bucket bucket{static_cast<std::uint16_t>(buckets.size()),
                  {},
                  gradient_type(one.gradient.scalar_type()).value()};
    for (const void* parameter : one.parameters) {
      const auto found = index_.find(parameter);
      if (found == index_.end())
        fail(where(), ", bucket ", bucket.id,
             ": holds a parameter that the model had not when it was attached");
      const auto* tensor = static_cast<const at::TensorImpl*>(parameter);
      const auto sizes = tensor->sizes();
      seen_orders_.note(parameters_[found->second].first, *tensor);
      bucket.parameters.push_back({parameters_[found->second].first,
                                   bucket.elements(),
                                   static_cast<std::size_t>(tensor->numel()),
                                   {sizes.begin(), sizes.end()}});
    }
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

void Attachment::finish() {
  std::optional<Step> step;
  std::function<void(const Step&)> callback;
  {
    const std::lock_guard lock(mutex_);
    step = end_step();
    callback = callback_;
  }
  if (step && callback) callback(*step);
}

void Attachment::settle() {
  finish();
  std::optional<Step> step;
  std::function<void(const Step&)> callback;
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(open_, false)) return;
    const bool skipped = courier_->outcome();
    if (skipped) held_.clear();
    step = close(skipped);
    callback = callback_;
  }
  if (callback) callback(*step);
}

std::optional<at::Tensor> Attachment::not_taken() const {
  const std::lock_guard lock(mutex_);
  if (!open_) return std::nullopt;
  return courier_->not_taken();
}

void Attachment::set_prompt(bool on) {
  const std::lock_guard lock(mutex_);
  prompt_ = on;
}

// Returns the step, if its outcome is known. What depends on the outcome cannot wait for settle():
// debts are paid again after a skipped step, and averages of unused parameters go back into memory.
// So on a device the host waits here in such steps.
std::optional<Step> Attachment::end_step() {
  if (!under_way_) return std::nullopt;
  under_way_ = false;
  std::optional<bool> skipped = finish_courier();
  if (!skipped && (prompt_ || !owed_.empty() || unused_.any())) skipped = courier_->outcome();
  std::vector<at::Tensor> gradients;
  for (const Seen& one : arrived_) gradients.push_back(one.gradient);
  arrived_.clear();
  if (staging_) staging_->give_back(seen_, gradients);
  if (!skipped.value_or(false)) {
    owed_.clear();
    take_back(gradients);
    held_.mark();
  }
  sample(gradients);
  if (skipped) return close(*skipped);
  open_ = true;
  return std::nullopt;
}

std::optional<bool> Attachment::finish_courier() {
  if (whole_ && !courier_)
    fail(where(), ": the exchange could not be set up in the last backward; its error says why");
  const float fill = options_.void_as_nan ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
  if (whole_) return courier_->finish(fill);
  if (settled_) {  // else no bucket has left
    try {
      courier_->finish(fill);
    } catch (const std::exception& error) {
      refuse_part(std::string(" (") + error.what() + ")");
    }
  }
  refuse_part("");
}

void Attachment::refuse_part(const std::string& besides) const {
  const std::size_t missing = arrived_.size();
  const std::string known = settled_ && missing < seen_.size()
                                ? ": parameter '" + seen_[missing].parameters.front().name +
                                      "', or another one of it, got no gradient"
                                : "";
  fail(where(), ": backward has ended before bucket ", missing, known,
       ". Has an exception ended it? Else the model has not used a parameter ",
       "(find_unused_parameters=True), or it was frozen or replaced since: wrap the model in DDP ",
       "anew", besides);
}

std::optional<Step> Attachment::close(bool skipped) {
  const Report now = combine(retired_, courier_->report(), 1);
  last_ = {earlier_ + now.steps, skipped, combine(now, before_, -1)};
  before_ = now;
  return last_;
}

// Adds to the residual if the scheme keeps one, otherwise to the next gradient. Schemes that send
// the signs of a momentum need neither: they still have the momentum.
void Attachment::take_back(const std::vector<at::Tensor>& gradients) {
  auto taken = unused_.take(gradients);
  if (taken.empty()) return;
  std::vector<std::string> names;
  for (const Bucket& bucket : seen_)
    for (const Parameter& parameter : bucket.parameters) names.push_back(parameter.name);
  std::map<std::string, std::vector<float>> back;
  for (auto& [place, values] : taken) back[names[place]] = std::move(values);
  Return visitor(back);
  courier_->visit_state(visitor);
  if (accumulates(options_.config)) return;
  for (auto& [name, values] : back)
    if (!visitor.took(name)) owed_[name] = std::move(values);
}

}  // namespace thinwire::ddp
