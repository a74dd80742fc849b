// fill.cc: a hook per parameter, which autograd calls when it has written .grad, before DDP's own.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/fill.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "thinwire/comm/c10d/device_stream.h"
#include "thinwire/core/error.h"

namespace thinwire::ddp {
namespace {

namespace autograd = torch::autograd;

// The buckets are protected members, so this class derives from the reducer.
struct Buckets : c10d::Reducer {
  static const std::vector<at::Tensor>& parameters(const c10d::Reducer& reducer) {
    return reducer.*(&Buckets::params_);
  }
  static std::size_t bucket_of(const c10d::Reducer& reducer, std::size_t parameter) {
    return (reducer.*(&Buckets::variable_locators_))[parameter].bucket_index;
  }
  // Undefined for a sparse gradient, which has a bucket of its own.
  static at::Tensor view_of(const c10d::Reducer& reducer, std::size_t parameter) {
    const VariableLocator& at = (reducer.*(&Buckets::variable_locators_))[parameter];
    const auto& views = (reducer.*(&Buckets::buckets_))[at.bucket_index].bucket_views_in;
    return at.intra_bucket_index < views.size() ? views[at.intra_bucket_index] : at::Tensor();
  }
  // Whether the gradients of this backward go into buckets, one each.
  static bool takes_each_once(const c10d::Reducer& reducer) {
    return reducer.*(&Buckets::expect_autograd_hooks_) && !(reducer.*(&Buckets::static_graph_));
  }
  // Whether DDP's own hook is the only one behind the accumulation.
  static bool is_alone_behind(const c10d::Reducer& reducer, std::size_t parameter) {
    return (reducer.*(&Buckets::grad_accumulators_))[parameter]->post_hooks().size() == 1;
  }
};

bool copies_as_is(const at::Tensor& gradient, const at::Tensor& view) {
  return !gradient.requires_grad() && gradient.scalar_type() == view.scalar_type() &&
         gradient.device() == view.device() && gradient.sizes() == view.sizes() &&
         gradient.strides() == view.strides();
}

}  // namespace

// The gradients that wait for their buckets to be complete. Parameters may outlive the reducer.
class Fill::Waiting : public std::enable_shared_from_this<Waiting> {
 public:
  explicit Waiting(const c10d::Reducer& reducer)
      : reducer_(&reducer), waits_(Buckets::parameters(reducer).size()) {}

  void end() {
    const std::lock_guard lock(mutex_);
    reducer_ = nullptr;
  }

  void take(std::size_t parameter, at::Tensor& gradient) {
    const std::lock_guard lock(mutex_);
    if (reducer_ == nullptr || !gradient.defined() || !Buckets::takes_each_once(*reducer_)) return;
    const at::Tensor view = Buckets::view_of(*reducer_, parameter);
    if (!view.defined() || gradient.is_sparse()) return;
    if (gradient.is_alias_of(view)) {
      if (waits_[parameter])
        fail("a parameter of shape ", c10::str(view.sizes()),
             " got a second gradient before its bucket had ",
             "the first; tell DDP by static_graph=True that a backward uses parameters twice");
      return;
    }
    if (waits_[parameter])  // since a backward that has failed
      std::erase_if(all_, [&](const One& one) { return one.parameter == parameter; });
    waits_[parameter] = false;
    const c10::Stream now = torch_engine::current_stream(view.device());
    if (!copies_as_is(gradient, view) || !Buckets::is_alone_behind(*reducer_, parameter) ||
        (!all_.empty() && now != stream_))
      return;
    call_at_end();
    stream_ = now;
    waits_[parameter] = true;
    all_.push_back({parameter, Buckets::bucket_of(*reducer_, parameter), task_, gradient, view});
    gradient = view;
  }

  // Of one bucket, or of all.
  void copy(std::optional<std::size_t> bucket) {
    const std::vector<One> some =
        removed([&](const One& one) { return !bucket || one.bucket == *bucket; });
    if (some.empty()) return;
    std::vector<at::Tensor> views, gradients;
    for (const One& one : some) {
      views.push_back(one.view);
      gradients.push_back(one.gradient);
    }
    const at::NoGradGuard no_grad;
    const c10::Stream now = torch_engine::current_stream(stream_.device());
    if (now == stream_) {
      at::_foreach_copy_(views, gradients);
    } else {
      const c10::StreamGuard guard(stream_);
      at::_foreach_copy_(views, gradients);
      c10::Event copied(stream_.device_type());
      copied.record(stream_);
      copied.block(now);
    }
  }

  // Forgets what a backward has left. There is something only if it failed.
  void drop(int task) {
    removed([&](const One& one) { return one.task == task; });
  }

 private:
  struct One {
    std::size_t parameter, bucket;
    int task;
    at::Tensor gradient, view;
  };

  // Copies what is left when a backward ends. A bucket may stay incomplete, which is DDP's to
  // complain about, but .grad is then what it would be without us.
  struct End {
    std::weak_ptr<Waiting> waiting;
    int task;
    End(std::weak_ptr<Waiting> w, int t) : waiting(std::move(w)), task(t) {}
    ~End() {
      if (const auto found = waiting.lock()) found->drop(task);
    }
    End(const End&) = delete;
    End& operator=(const End&) = delete;
  };

  void call_at_end() {
    const int task = autograd::get_current_graph_task_id();
    if (std::exchange(task_, task) == task) return;
    const auto end = std::make_shared<End>(weak_from_this(), task);
    autograd::Engine::get_default_engine().queue_callback([end] {
      if (const auto found = end->waiting.lock()) found->copy(std::nullopt);
    });
  }

  template <typename Which>
  std::vector<One> removed(const Which& which) {
    const std::lock_guard lock(mutex_);
    std::vector<One> some, others;
    for (One& one : all_) (which(one) ? some : others).push_back(std::move(one));
    for (const One& one : some) waits_[one.parameter] = false;
    all_ = std::move(others);
    return some;
  }

  std::recursive_mutex mutex_;    // a callback that cannot be queued is dropped at once
  const c10d::Reducer* reducer_;  // null when it is gone
  std::vector<One> all_;
  std::vector<bool> waits_;                                           // by parameter
  c10::Stream stream_{c10::Stream::DEFAULT, c10::Device(c10::kCPU)};  // of all_
  int task_ = -1;  // the backward whose end we are called at
};

class Fill::Hook final : public autograd::PostAccumulateGradHook {
 public:
  Hook(std::shared_ptr<Waiting> waiting, std::size_t parameter)
      : waiting_(std::move(waiting)), parameter_(parameter) {}

  void operator()(const autograd::Variable& parameter) override {
    waiting_->take(parameter_, parameter.mutable_grad());
  }

 private:
  std::shared_ptr<Waiting> waiting_;
  std::size_t parameter_;
};

// A parameter has one place for such hooks. One of somebody else's that is there stays, and one
// that comes later replaces ours: DDP then copies these gradients itself.
Fill::Fill(const c10d::Reducer& reducer) : waiting_(std::make_shared<Waiting>(reducer)) {
  const std::vector<at::Tensor>& parameters = Buckets::parameters(reducer);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto* const there = autograd::impl::post_acc_grad_hooks(parameters[i]).get();
    if (there == nullptr || dynamic_cast<const Hook*>(there) != nullptr)
      autograd::impl::set_post_acc_grad_hooks(parameters[i], std::make_unique<Hook>(waiting_, i));
  }
}

Fill::~Fill() { waiting_->end(); }

void Fill::complete(std::size_t bucket) { waiting_->copy(bucket); }

}  // namespace thinwire::ddp
