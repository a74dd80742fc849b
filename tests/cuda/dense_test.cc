// dense_test.cc: dense, fp16 and bf16 on a GPU against the CPU; schemes without kernels.
// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/device.h"
#include "tests/kernels/kernel_testing.h"
#include "thinwire/compress/registry.h"

namespace thinwire {
namespace {

class DenseOnDevice : public OnDevice {
 protected:
  // One step of one rank of four, whose payload stands for the sum. Returns the gradient after it.
  Elements on_cpu(const std::string& scheme, DType type, const Elements& gradient, bool& skipped) {
    const std::size_t count = gradient.size() / size_of(type);
    const auto compressor =
        make_compressor({scheme, {}}, Bucket::single(0, "w", count, type), {1, 4});
    Elements memory = gradient;
    const Leg leg = compressor->leg(0, 0);
    Elements room(leg.bytes);
    const Bytes out = leg.in_place ? Bytes(memory) : Bytes(room);
    const TensorView view(memory.data(), count, type, {});
    EXPECT_EQ(compressor->encode({}, view, out), leg.bytes);
    skipped = compressor->decode({}, {out, leg.bytes, {}}, view).code == Code::skipped;
    return memory;
  }

  Elements on_gpu(const std::string& scheme, DType type, const Elements& gradient, bool& skipped,
                  float fill) {
    const std::size_t count = gradient.size() / size_of(type);
    const auto compressor =
        make_compressor({scheme, {}}, Bucket::single(0, "w", count, type), {1, 4, true, true, gpu});
    const OnGpu<std::byte> memory(gradient);
    const Leg leg = compressor->leg(0, 0);
    const OnGpu<std::byte> room(Elements(leg.bytes));
    const VerdictOnGpu verdict;
    Turn turn;
    turn.stream = stream;
    turn.verdict = verdict.data();
    const Bytes out{leg.in_place ? memory.data() : room.data(), leg.bytes};
    const TensorView view(memory.data(), count, type, gpu);
    EXPECT_EQ(compressor->encode(turn, view, out), leg.bytes);
    EXPECT_TRUE(compressor->decode(turn, {out, leg.bytes, {}}, view).ok());
    compressor->conclude(turn, view, fill);
    skipped = verdict.download(stream).skipped != 0;
    (void)room.download(stream);  // for its guards
    return memory.download(stream);
  }
};

TEST_F(DenseOnDevice, EqualsTheCpu) {
  for (const std::string scheme : {"dense", "fp16", "bf16"}) {
    for (const DType type : gradient_types) {
      for (const Content content : all_contents) {
        const Elements gradient = elements_of(type, make_content(content, 1, 5003));
        bool skipped_there = false, skipped_here = false;
        const Elements here = on_cpu(scheme, type, gradient, skipped_here);
        const Elements there = on_gpu(scheme, type, gradient, skipped_there, 0.5f);
        EXPECT_EQ(skipped_there, skipped_here) << scheme << ' ' << name_of(type);
        const Elements filled = elements_of(type, std::vector<float>(5003, 0.5f));
        EXPECT_EQ(there, skipped_here ? filled : here) << scheme << ' ' << name_of(type);
      }
    }
  }
}

TEST_F(DenseOnDevice, AViewOfAnotherPlaceIsAnError) {
  const auto compressor =
      make_compressor({"dense", {}}, Bucket::single(0, "w", 3), {0, 1, true, true, gpu});
  std::vector<float> host(3);
  EXPECT_THROW(compressor->encode({}, std::span(host), std::as_writable_bytes(std::span(host))),
               Error);
}

}  // namespace
}  // namespace thinwire
