// held.h: does a parameter's .grad still hold the average that the last step left there? Then the
// next backward would add to it, and a scheme with momentum would apply momentum to an average
// twice. The check looks at .grad itself before a backward adds to it, so it need not know about
// steps, dropped steps or zero_grad(). On a device, each .grad that is not None costs a wait;
// zero_grad() sets None by default.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace thinwire::ddp {

class Held {
 public:
  Held() = default;
  ~Held();
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  bool watches() const { return !watched_.empty(); }
  void watch(const at::Tensor& parameter);
  // Says that a step has brought averages, or that it has not after all.
  void mark() { set(true); }
  void clear() { set(false); }
  // The first parameter whose .grad holds an average and is not zero; null if there is none.
  const void* first() const;

 private:
  void set(bool held);

  struct Watched {
    at::Tensor parameter;
    unsigned hook = 0;
    std::shared_ptr<bool> held;  // shared with the hook, which may live longer
  };
  std::vector<Watched> watched_;
};

}  // namespace thinwire::ddp
