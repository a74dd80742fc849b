// pinned_test.cc: checksums of what two workers send, average and keep, scheme by scheme: a change
// of the bits of a training shows as a diff here. All gradients are small multiples of 2^-9 and two
// numbers have one sum, so that no order of summation has a say.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/exchange/forwarding.h"
#include "tests/laws.h"
#include "thinwire/core/crc32c.h"

namespace thinwire::pinned {

using namespace testing;

// Adds what this rank sends to a checksum.
class Listening final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  std::uint32_t crc = 0;

  void add(ConstBytes bytes) { crc = crc32c(bytes, crc); }
  Pending all_reduce(Bytes data, DType dtype, ReduceOp op, Stream stream) override {
    add(data);
    return Forwarding::all_reduce(data, dtype, op, stream);
  }
  Pending all_gather(ConstBytes mine, std::size_t slot_bytes, Bytes slots,
                     std::span<std::size_t> sizes, Stream stream) override {
    add(std::as_bytes(std::span(&slot_bytes, 1)));
    add(mine);
    return Forwarding::all_gather(mine, slot_bytes, slots, sizes, stream);
  }
};

static const std::vector<Bucket> buckets = {
    Bucket{0, {{"a", 0, 680, {40, 17}}, {"b", 680, 33, {}}}}, Bucket{1, {{"c", 0, 5000, {}}}}};

// In the third step of six a rank has NaN.
static std::uint32_t checksum(const std::string& config) {
  std::uint32_t crcs[2] = {};
  run_local(2, [&](Group& group) {
    Listening listening(group);
    Exchange exchange(listening, buckets, Config::parse(config));
    listening.crc = 0;
    for (std::uint64_t step = 0; step < 6; ++step) {
      Model model;
      for (const Bucket& bucket : buckets) {
        auto& values = model.emplace_back(bucket.elements());
        for (std::size_t i = 0; i < values.size(); ++i) {
          const std::uint32_t level = random_below(seed_of(group, step), i, 4096);
          values[i] = i % 7 == 3 ? 0 : static_cast<float>(static_cast<int>(level) - 2048) / 512;
        }
      }
      if (step == 2 && group.rank() == 1) model[1][77] = std::numeric_limits<float>::quiet_NaN();
      take_step(exchange, model, 0);
      for (const auto& bucket : model) listening.add(std::as_bytes(std::span(bucket)));
    }
    listening.add(serialize(state_of(exchange)));
    crcs[group.rank()] = listening.crc;
  });
  return crc32c(std::as_bytes(std::span(crcs)));
}

TEST(Pinned, SchemesTrainWithTheseBits) {
  const std::pair<const char*, std::uint32_t> expected[] = {
      {"dense", 2403451394u},
      {"fp16", 2524669804u},
      {"bf16", 2961950699u},
      {"topk:density=0.05,select=exact,values=f32", 2489711950u},
      {"topk:density=0.05,index=gap,select=exact", 144062143u},
      {"topk:density=0.05,feedback=off,index=elias_fano,select=exact,values=sign", 3446709724u},
      {"dgc:clip=1,clip_norm=bucket,density=0.05,mask=on,select=exact,values=bf16", 3929876767u},
      {"dgc:clip=1,density=0.05,mask=on,nesterov=on,quota=layer,select=exact,warmup=4",
       4175650001u},
      {"dgc:clip=1,clip_norm=bucket,density=0.05,select=exact,values=bf16", 734069868u},
      {"dgc:clip=1,density=0.05,nesterov=on,quota=layer,select=exact,warmup=4", 3642449362u},
      {"csc:chunk=16,density=0.1", 306096627u},
      {"csc:chunk=16,density=0.1,select=previous,values=bf16,warmup=2", 925513712u},
      {"onebit", 649324741u},
      {"onebit:group=64,memory=residual", 3987700005u},
      {"efsign", 373740391u},
      {"threshold:tau=0.5", 1453103414u},
      {"terngrad", 935218189u},
      {"terngrad:travel=sum", 1158888020u},
      {"qsgd:bits=4", 2763706340u},
      {"qsgd:bits=2,form=coded,memory=residual", 2602308096u},
      {"signum", 295251779u},
      {"signum:travel=sum", 4157087090u},
      {"randomk:density=0.1", 1900009307u},
      {"randomk:block=3,density=0.1,memory=momentum", 2752929659u},
      {"natural", 2624185762u},
      {"int8", 2699131006u},
      {"int8:memory=momentum,rounding=random", 2836188310u},
  };
  for (const auto& [config, crc] : expected) EXPECT_EQ(checksum(config), crc) << config;
}

}  // namespace thinwire::pinned
