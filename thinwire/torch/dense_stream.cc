// dense_stream.cc: DDP's own all-reduce for gradients on a device, bit-identical to plain DDP.
// One pass on the device checks whether the sums are finite, and a second one writes zeros if they
// are not. The host reads the answer when somebody asks.
// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <map>
#include <utility>

#include "thinwire/core/error.h"
#include "thinwire/exchange/agreement.h"
#include "thinwire/torch/courier.h"
#include "thinwire/torch/later.h"

namespace thinwire::ddp {
namespace {

class DenseStreamCourier final : public Courier {
 public:
  DenseStreamCourier(Connections connections, const std::vector<Bucket>& buckets)
      : connections_(std::move(connections)),
        buckets_(buckets.size()),
        found_(connections_.device) {
    check_agreement(*connections_.group, buckets, "dense");
    const auto options = at::TensorOptions().dtype(at::kFloat).device(connections_.device);
    bad_ = at::zeros({1}, options);
    one_ = at::ones({1}, options);
  }

  void submit(std::size_t bucket, const at::Tensor& gradient) override {
    if (bucket == 0) tensors_.clear();
    share_out(gradient, connections_.group->size());
    std::vector<at::Tensor> tensors = {gradient};
    works_.push_back(connections_.process_group->allreduce(tensors));
    tensors_.push_back(gradient);
  }

  // NCCL's wait() makes the current stream wait; Gloo's makes the host wait.
  std::optional<bool> finish(float fill) override {
    if (works_.size() != buckets_)
      fail("rank ", connections_.group->rank(), ": expected ", buckets_, " buckets in a step, got ",
           works_.size());
    for (const auto& work : std::exchange(works_, {})) await(*work);
    bad_.zero_();
    std::map<at::ScalarType, std::vector<at::Tensor>> by_type;  // one launch for each
    for (const at::Tensor& tensor : tensors_) by_type[tensor.scalar_type()].push_back(tensor);
    for (const auto& [type, tensors] : by_type)
      at::_amp_foreach_non_finite_check_and_unscale_(tensors, bad_, one_);
    // Here and not in outcome(), which may come when the next backward has filled the buckets. For
    // NaN there is nothing to do: some element is not finite.
    if (fill == 0) {
      const at::Tensor mask = bad_.ne(0);
      for (at::Tensor& tensor : tensors_) tensor.masked_fill_(mask, fill);
    }
    found_.take(bad_);
    open_ = true;
    return std::nullopt;
  }

  bool outcome() override {
    if (!std::exchange(open_, false)) return skipped_;
    if (!found_.await(connections_.timeout)) lost("the device has not ended the step");
    skipped_ = found_.value() != 0;
    for (const at::Tensor& tensor : tensors_)
      count_dense(report_, tensor, connections_.group->size());
    report_.steps += 1;
    report_.skipped += skipped_ ? 1 : 0;
    step_ += 1;
    return skipped_;
  }

  at::Tensor not_taken() const override { return bad_.squeeze(0).clone(); }

  Report report() override { return report_; }

  void visit_state(StateVisitor& visitor) override {
    outcome();
    visitor.number("exchange/step", step_, Share::replicated);
  }

 private:
  void await(c10d::Work& work) {
    try {
      work.wait();
    } catch (const std::exception& error) {
      lost(error.what());
    }
  }

  [[noreturn]] void lost(const std::string& text) {
    connections_.group->barrier().wait();  // throws an Error that names who is silent
    fail("rank ", connections_.group->rank(),
         ": all-reduce failed although all ranks are there: ", text.substr(0, text.find('\n')));
  }

  Connections connections_;
  std::size_t buckets_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  std::vector<at::Tensor> tensors_;  // of the last step
  at::Tensor bad_, one_;
  Later found_;
  bool open_ = false;  // the outcome is not known
  bool skipped_ = false;
  Report report_;
  double step_ = 0;
};

}  // namespace

std::unique_ptr<Courier> make_dense_stream_courier(const Connections& connections,
                                                   const std::vector<Bucket>& buckets) {
  return std::make_unique<DenseStreamCourier>(connections, buckets);
}

}  // namespace thinwire::ddp
