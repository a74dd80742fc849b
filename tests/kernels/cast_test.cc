// cast_test.cc: arrays of halves against core/half.h, on every vector width.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/cast.h"

#include "tests/kernels/kernel_testing.h"
#include "thinwire/core/error.h"
#include "thinwire/core/half.h"

namespace thinwire {
namespace {

class Cast : public EachTarget {};
THINWIRE_EACH_TARGET(Cast);

struct Kind {
  decltype(&cast_to_f16) to, to_reference;
  decltype(&cast_from_f16) from, from_reference;
  decltype(&add_f16) add, add_reference;
  std::uint16_t (*narrow)(float);
  float (*widen)(std::uint16_t);
};

const Kind kinds[] = {{cast_to_f16, cast_to_f16_reference, cast_from_f16, cast_from_f16_reference,
                       add_f16, add_f16_reference, to_f16, from_f16},
                      {cast_to_bf16, cast_to_bf16_reference, cast_from_bf16,
                       cast_from_bf16_reference, add_bf16, add_bf16_reference, to_bf16, from_bf16}};

bool is_nan(const Kind& kind, std::uint16_t half) { return std::isnan(kind.widen(half)); }

std::vector<std::uint16_t> all_halves() {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  return halves;
}

TEST_P(Cast, FastEqualsReference) {
  for_all_shapes([](Content content, std::size_t size, std::size_t offset) {
    const auto x = make_content(content, 1, size);
    for (const Kind& kind : kinds) {
      const std::vector<std::uint16_t> blank(size);
      Guarded<float> input(x, offset);
      Guarded<std::uint16_t> fast(blank, offset), slow(blank, offset);
      kind.to(input.data(), fast.data(), size, 0.3f);
      kind.to_reference(input.data(), slow.data(), size, 0.3f);
      ASSERT_TRUE(same_bits(fast.view(), slow.view()) && fast.intact());
      Guarded<float> fast_back(x, 3 - offset), slow_back(x, 3 - offset);
      ASSERT_EQ(kind.from(fast.data(), fast_back.data(), size, 3.0f),
                kind.from_reference(slow.data(), slow_back.data(), size, 3.0f));
      ASSERT_TRUE(same_bits(fast_back.view(), slow_back.view()) && fast_back.intact());
    }
  });
}

// Rounding changes at the halves and midway between them, so test these and the floats
// next to them.
TEST_P(Cast, ToHalfAtEveryBorder) {
  for (const Kind& kind : kinds) {
    std::vector<float> x;
    for (const std::uint16_t half : all_halves()) {
      const float value = kind.widen(half);
      const float above = kind.widen(static_cast<std::uint16_t>(half + 1));
      for (const float centre : {value, 0.5f * value + 0.5f * above}) {
        const auto bits = std::bit_cast<std::uint32_t>(centre);
        for (const std::uint32_t step : {0u, 1u, ~0u}) {
          x.push_back(std::bit_cast<float>(bits + step));
        }
      }
    }
    for (std::size_t i = 0; i < 200000; ++i) {
      x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random_at(5, i) >> 32)));
    }
    std::vector<std::uint16_t> out(x.size());
    kind.to(x.data(), out.data(), x.size(), 1.0f);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(out[i], kind.narrow(x[i] * 1.0f)) << std::bit_cast<std::uint32_t>(x[i]);
    }
  }
}

TEST_P(Cast, FromEveryHalf) {
  const auto halves = all_halves();
  for (const Kind& kind : kinds) {
    std::vector<float> out(halves.size());
    for (const float factor : {1.0f, 1.0f / 3, 0x1p-130f}) {
      EXPECT_FALSE(kind.from(halves.data(), out.data(), halves.size(), factor));
      for (std::size_t i = 0; i < halves.size(); ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(out[i]),
                  std::bit_cast<std::uint32_t>(kind.widen(halves[i]) * factor))
            << i;
      }
    }
    EXPECT_TRUE(kind.from(halves.data(), out.data(), 0x7c00, 1.0f));
    EXPECT_EQ(kind.from(halves.data(), out.data(), 0x7c01, 1.0f), kind.widen == from_bf16);
  }
}

TEST_P(Cast, AddEqualsReference) {
  for (const Kind& kind : kinds) {
    for (const std::size_t size : awkward_sizes) {
      std::vector<std::uint16_t> a(size), b(size);
      for (std::size_t i = 0; i < size; ++i) {
        a[i] = static_cast<std::uint16_t>(random_at(6, i));
        b[i] = static_cast<std::uint16_t>(random_at(7, i));
        if (is_nan(kind, a[i]) && is_nan(kind, b[i])) b[i] = 0;
      }
      Guarded<std::uint16_t> fast(a, size % 4), slow(a, size % 4);
      kind.add(fast.data(), b.data(), size);
      kind.add_reference(slow.data(), b.data(), size);
      ASSERT_TRUE(same_bits(fast.view(), slow.view()) && fast.intact()) << size;
      for (std::size_t i = 0; i < size; ++i) {
        ASSERT_EQ(slow.view()[i], kind.narrow(kind.widen(a[i]) + kind.widen(b[i])));
      }
    }
  }
}

TEST(CastValue, KnownHalves) {
  const float x[] = {1, -2, 65504, 65536, 0x1p-24f, 0};
  std::uint16_t out[6];
  cast_to_f16(x, out, 6, 1);
  const std::uint16_t f16[] = {0x3c00, 0xc000, 0x7bff, 0x7c00, 0x0001, 0};
  EXPECT_TRUE(std::equal(out, out + 6, f16));
  cast_to_f16(x, out, 1, 0.5f);
  EXPECT_EQ(out[0], 0x3800);
  cast_to_bf16(x, out, 2, 1);
  EXPECT_EQ(out[0], 0x3f80);
  EXPECT_EQ(out[1], 0xc000);
}

// Every pair of types: widened, scaled, narrowed; also in place.
TEST(CastAny, EqualsThePlainRule) {
  const auto x = make_content(Content::heavy, 7, 1001);
  const auto narrow = [](DType type, float value) {
    return type == DType::f32   ? value
           : type == DType::f16 ? from_f16(to_f16(value))
                                : from_bf16(to_bf16(value));
  };
  for (const DType from : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType to : {DType::f32, DType::f16, DType::bf16}) {
      std::vector<std::byte> in(4 * x.size()), out(4 * x.size());
      std::vector<float> got(x.size());
      (void)cast_any(DType::f32, x.data(), from, in.data(), x.size(), 1);
      std::byte* const target = from == to ? in.data() : out.data();
      const bool finite = cast_any(from, in.data(), to, target, x.size(), 0.3f);
      (void)cast_any(to, target, DType::f32, got.data(), x.size(), 1);
      bool expected_finite = true;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const float expected = narrow(to, narrow(from, x[i]) * 0.3f);
        expected_finite = expected_finite && std::isfinite(expected);
        ASSERT_EQ(got[i], expected) << name_of(from) << " to " << name_of(to);
      }
      EXPECT_EQ(finite, expected_finite);
    }
  }
  EXPECT_THROW(cast_any(DType::i8, nullptr, DType::f32, nullptr, 0, 1), Error);
}

}  // namespace
}  // namespace thinwire
