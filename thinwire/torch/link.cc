// link.cc: steps and cuts.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/link.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <utility>

#include "thinwire/core/error.h"
#include "thinwire/torch/state.h"

namespace thinwire::ddp {
namespace {

// Steps after a load in which DDP's first cut may differ from the loaded one, which it takes up by
// itself after its first step, with a static graph after its second. Then its cut is ours.
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

void drop_buckets(State& state) {
  std::erase_if(state, [](const auto& item) {
    return item.second.share != Share::summed && is_of_bucket(item.first);
  });
}

}  // namespace

Link::Link(Wires wires, std::vector<std::pair<std::string, at::Tensor>> names, LinkOptions options)
    : wires_(std::move(wires)), parameters_(std::move(names)), options_(std::move(options)) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) index_[identity(parameters_[i].second)] = i;
}

Link::~Link() = default;

std::string Link::where() const { return "rank " + std::to_string(wires_.group->rank()); }

void Link::submit(c10d::GradBucket& bucket) {
  if (bucket.getIndex() == 0) {
    finish();  // of a rank that has joined early and never asked for it
    ask_factors();
  }
  const std::lock_guard lock(mutex_);
  const std::size_t index = bucket.getIndex();
  const at::Tensor& gradient = bucket.getBuffer();
  if (gradient.is_sparse() || gradient.scalar_type() != at::kFloat || !gradient.is_cpu() ||
      !gradient.is_contiguous())
    fail(where(), ", bucket ", index, ": expected dense gradients of float32 on the CPU, got ",
         gradient.toString(), "; keep parameters in float32 (autocast does)");
  if (index == 0) begin(gradient);
  Seen seen{identities(bucket.getParameters()), gradient};
  if (arrived_.size() != index)
    fail(where(), ": expected bucket ", arrived_.size(), ", got ", index);
  if (settled_ && (index >= identities_.size() || identities_[index] != seen.parameters))
    fail(where(), ", bucket ", index,
         ": DDP has cut its buckets anew in mid-run; attach to the model again");
  arrived_.push_back(std::move(seen));
  under_way_ = true;
  if (settled_) hand_over(index, gradient);
  if (!settled_ && bucket.isLast()) arrange();
}

void Link::begin(const at::Tensor& first) {
  arrived_.clear();
  staging_.reset();
  if (!first_.defined() || first_.const_data_ptr() != first.const_data_ptr()) settled_ = false;
  first_ = first;
  if (renewed_ && settled_) renew(buckets_, true);
  follow_scale();
  if (settled_) apply_factors();
}

// Called with all buckets of a step at hand.
void Link::arrange() {
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

// Another courier takes over what the last one, or the last load, has left.
void Link::renew(const std::vector<Bucket>& buckets, bool same_cut) {
  State state = std::exchange(loaded_, {});
  if (courier_) {
    state = saved();
    retire();
  }
  if (!same_cut) drop_buckets(state);
  orders_ = seen_orders_;
  orders_.by_memory(state);
  courier_ = make_courier(wires_, buckets, options_.config, options_.exchange);
  buckets_ = buckets;
  renewed_ = false;
  Transfer transfer(state);
  courier_->visit_state(transfer);
  owed_ = transfer.owed(buckets, wires_.group->size());
  Deposit deposit(owed_);
  courier_->visit_state(deposit);
  if (const auto scale = state.find(scale_entry); scale != state.end())
    last_scale_ = scale->second.number;
  follow_scale();
}

void Link::retire() {
  if (courier_) retired_ = combine(retired_, courier_->report(), 1);
  courier_.reset();
}

void Link::launch() {
  std::vector<at::Tensor> gradients;
  for (const Seen& one : arrived_) gradients.push_back(one.gradient);
  if (names_of(buckets_) != names_of(seen_)) {
    staging_.emplace(buckets_);
    staging_->take(seen_, gradients);
    gradients = staging_->tensors();
  }
  for (std::size_t i = 0; i < gradients.size(); ++i) hand_over(i, gradients[i]);
}

void Link::hand_over(std::size_t bucket, const at::Tensor& gradient) {
  if (!owed_.empty()) pay(buckets_[bucket], gradient);
  courier_->submit(bucket, gradient);
}

void Link::pay(const Bucket& bucket, const at::Tensor& gradient) {
  float* const data = gradient.data_ptr<float>();
  for (const Parameter& parameter : bucket.parameters) {
    const auto found = owed_.find(parameter.name);
    if (found == owed_.end() || found->second.size() != parameter.count) continue;
    for (std::size_t i = 0; i < parameter.count; ++i)
      data[parameter.offset + i] += found->second[i];
  }
}

// DDP's first cut has the parameters in the reverse of the model's order.
void Link::name_parameters() {
  std::size_t place = 0;
  for (const Seen& one : arrived_) place += one.parameters.size();
  for (const Seen& one : arrived_)
    for (const void* parameter : one.parameters) {
      index_[parameter] = parameters_.size();
      parameters_.emplace_back("parameter" + std::to_string(--place), at::Tensor());
    }
}

std::vector<Bucket> Link::buckets_seen() {
  std::vector<Bucket> buckets;
  for (const Seen& one : arrived_) {
    Bucket bucket{static_cast<std::uint16_t>(buckets.size()), {}};
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

void Link::finish() {
  std::optional<Step> step;
  std::function<void(const Step&)> callback;
  {
    const std::lock_guard lock(mutex_);
    step = end_step();
    callback = callback_;
  }
  if (step && callback) callback(*step);
}

std::optional<Step> Link::end_step() {
  if (!under_way_) return std::nullopt;
  under_way_ = false;
  const bool skipped = courier_->finish();
  std::vector<at::Tensor> gradients;
  for (const Seen& one : arrived_) gradients.push_back(one.gradient);
  arrived_.clear();
  if (staging_) staging_->give_back(seen_, gradients);
  if (skipped && options_.void_as_nan)
    for (at::Tensor& gradient : gradients) gradient.fill_(std::numeric_limits<double>::quiet_NaN());
  if (!skipped) owed_.clear();
  sample(gradients);
  const Report now = combine(retired_, courier_->report(), 1);
  last_ = {now.steps, skipped, combine(now, before_, -1)};
  before_ = now;
  return last_;
}

}  // namespace thinwire::ddp
