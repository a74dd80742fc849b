// stream_test.cc: the floors compute what they say, on every vector width.
// SPDX-License-Identifier: Apache-2.0
#include "bench/stream.h"

#include "tests/kernels/kernel_testing.h"

namespace thinwire {
namespace {

class Floor : public EachTarget {};
THINWIRE_EACH_TARGET(Floor);

TEST_P(Floor, FastEqualsReference) {
  for_all_shapes([](Content content, std::size_t size, std::size_t offset) {
    if (content >= Content::nan_first) return;
    const auto g = make_content(content, 1, size), u = make_content(content, 2, size);
    Guarded<float> input(g, offset), u_fast(u, 3 - offset), u_slow(u, 3 - offset);
    Guarded<float> v_fast(g, 0), v_slow(g, 0), copy(u, offset);
    stream_read3_write2(input.data(), u_fast.data(), v_fast.data(), size);
    stream_read3_write2_reference(input.data(), u_slow.data(), v_slow.data(), size);
    ASSERT_TRUE(same_bits(u_fast.view(), u_slow.view()) && u_fast.intact());
    ASSERT_TRUE(same_bits(v_fast.view(), v_slow.view()) && v_fast.intact());
    ASSERT_EQ(stream_read(input.data(), size), stream_read_reference(input.data(), size));
    stream_copy(input.data(), copy.data(), size);
    ASSERT_TRUE(same_bits(copy.view(), input.view()) && copy.intact());
  });
}

}  // namespace
}  // namespace thinwire
