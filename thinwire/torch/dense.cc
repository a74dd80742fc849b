// dense.cc: DDP's own all-reduce, bit-identical: gradients times 1/workers, then the process
// group's sum.
//
// Gloo's all-reduce does not say which rank is gone. So a rank that sees it fail reports it in the
// store, and a rank that has waited for a while looks there. All ranks then enter a barrier of our
// own group, whose roll call names the silent rank.
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <utility>

#include "thinwire/core/error.h"
#include "thinwire/exchange/agreement.h"
#include "thinwire/torch/courier.h"

namespace thinwire::ddp {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds slice{500};
constexpr const char* alarm = "dense/failed";

class DenseCourier final : public Courier {
 public:
  DenseCourier(Connections connections, const std::vector<Bucket>& buckets)
      : connections_(std::move(connections)), buckets_(buckets.size()) {
    check_agreement(*connections_.group, buckets, "dense");
  }

  void submit(std::size_t, const at::Tensor& gradient) override {
    share_out(gradient, connections_.group->size());
    std::vector<at::Tensor> tensors = {gradient};
    works_.push_back(connections_.process_group->allreduce(tensors));
    tensors_.push_back(gradient);
  }

  std::optional<bool> finish(float fill) override {
    if (tensors_.size() != buckets_)
      fail("rank ", connections_.group->rank(), ": expected ", buckets_, " buckets in a step, got ",
           tensors_.size());
    const auto start = Clock::now();
    bool skipped = false;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      await(*works_[i]);
      skipped = skipped || !is_finite(tensors_[i]);  // while the next buckets are on their way
    }
    works_.clear();
    for (at::Tensor& tensor : tensors_) {
      count_dense(report_, tensor, connections_.group->size());
      if (skipped) tensor.fill_(fill);
    }
    tensors_.clear();
    report_.wait_seconds += std::chrono::duration<double>(Clock::now() - start).count();
    report_.steps += 1;
    report_.skipped += skipped ? 1 : 0;
    step_ += 1;
    skipped_ = skipped;
    return skipped;
  }

  bool outcome() override { return skipped_; }

  Report report() override { return report_; }

  void visit_state(StateVisitor& visitor) override {
    visitor.number("exchange/step", step_, Share::replicated);
  }

 private:
  using Clock = std::chrono::steady_clock;

  void await(c10d::Work& work) {
    for (;;) {
      try {
        work.wait(slice);
        return;
      } catch (const std::exception& error) {
        if (work.isCompleted()) lost(error.what());
      }
      if (alarmed()) lost("another rank's all-reduce has failed");
    }
  }

  bool alarmed() const {
    try {
      return connections_.store && connections_.store->check({alarm});
    } catch (const std::exception&) {
      return true;  // the store is gone, and with it the rank that held it
    }
  }

  [[noreturn]] void lost(const std::string& text) {
    try {
      if (connections_.store) connections_.store->set(alarm, std::vector<std::uint8_t>{1});
    } catch (const std::exception&) {  // the roll call will say that the store does not answer
    }
    connections_.group->barrier().wait();  // throws an Error that names who is silent
    fail("rank ", connections_.group->rank(),
         ": all-reduce failed although all ranks are there: ", text.substr(0, text.find('\n')));
  }

  Connections connections_;
  std::size_t buckets_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  std::vector<at::Tensor> tensors_;
  Report report_;
  bool skipped_ = false;
  double step_ = 0;
};

}  // namespace

std::unique_ptr<Courier> make_dense_courier(const Connections& connections,
                                            const std::vector<Bucket>& buckets) {
  return std::make_unique<DenseCourier>(connections, buckets);
}

}  // namespace thinwire::ddp
