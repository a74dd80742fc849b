// lazy.h: a group whose collectives do nothing until somebody waits for them or asks whether they
// are done: whoever forgets to wait reads what was there before.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "tests/exchange/forwarding.h"

namespace thinwire::testing {

class Lazy final : public Forwarding {
 public:
  using Forwarding::Forwarding;

  Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) override {
    return later([=, this] { return Forwarding::all_reduce(data, dtype, op, stream); });
  }
  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream stream) override {
    return later(
        [=, this] { return Forwarding::all_gather(mine, slot_bytes, slots, sizes, stream); });
  }

 private:
  class Work final : public Pending::Work {
   public:
    explicit Work(std::function<Pending()> start) : start_(std::move(start)) {}
    void wait() override {
      begin();
      pending_.wait();
    }
    bool done() override {
      begin();
      return pending_.done();
    }
    Cost cost() const override { return pending_.cost(); }

   private:
    void begin() {
      if (start_) pending_ = std::exchange(start_, {})();
    }

    std::function<Pending()> start_;
    Pending pending_;
  };

  static Pending later(std::function<Pending()> start) {
    return Pending(std::make_unique<Work>(std::move(start)));
  }
};

}  // namespace thinwire::testing
