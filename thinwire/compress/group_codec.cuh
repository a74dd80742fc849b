// group_codec.cuh: the codec of a quantiser whose groups have a fixed size. Its rule is a struct
// that kernels take by value:
//
//     elements, group, room_bytes()       its numbers; bytes of shared memory per team
//     measure<size>(x, count)             the scale of a group, in all threads; scale.finite
//     write<size>(...)                    the group's bytes and rests; false: an x is not finite
//     refuse<size>(...)                   zeros in their place, where scale.finite is false
//     rows, Room, measure_rows(x), write_rows(...)
//                                         the same for a group of 32 * rows elements in registers
//     step, place(i, n), add(...)         decoding: up to `step` elements
//     add_sixteen(...)                    16 elements of a group that are all there
//     sections(tile)                      the lines of frames that a tile decodes
//     value(payload, i)                   one decoded element
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/compress/coded_decode.cuh"
#include "thinwire/compress/coded_encode.cuh"

namespace thinwire::coded {

template <typename Rule>
class GroupCodec final : public CudaCodec {
 public:
  GroupCodec(const char* name, const Rule& rule, std::size_t payload_bytes, Device device)
      : name_(name), rule_(rule), bytes_(payload_bytes) {
    if (rule.elements == 0 || rule.group > tile_most) return;
    tile_ = tile_most / rule.group * rule.group;
    sums_ = block_frame::FrameSums(bytes_, rule.sections(tile_, bytes_),
                                   (rule.elements + tile_ - 1) / tile_, resident_blocks(3, device),
                                   device);
  }

  BlockRule payload_rule() const override { return {bytes_, true, Code::truncated}; }
  const block_frame::FrameSums* sums() const override { return tile_ > 0 ? &sums_ : nullptr; }

  void encode(const CodedStep& step) override {
    if (step.gradient.count == 0) return;
    with_element(step.gradient.dtype, name_, [&](auto element) {
      using E = decltype(element);
      std::uint32_t done = 0;  // groups
      if (rule_.group == warp * Rule::rows) {
        done = rule_.elements / rule_.group;
        if (done > 0)
          encode_rows<E>
              <<<blocks_for(std::size_t{done} * warp), block_threads, 0, handle_of(step.stream)>>>(
                  feed_of<E>(step), rule_, step.key, step.payload, step.frame, step.verdict);
      }
      if (std::size_t{done} * rule_.group == rule_.elements) return;
      if (rule_.group <= warp_group) {
        launch<E, warp>(step, done);
      } else {
        launch<E, wide>(step, done);
      }
    });
    check_launch(name_);
  }

  void average(const BlockPayloads& payloads, float share, TensorView average,
               Stream stream) override {
    if (average.count == 0) return;
    with_element(average.dtype, name_, [&](auto element) {
      using E = decltype(element);
      auto* const to = static_cast<typename E::Stored*>(average.data);
      if (tile_ > 0) {
        prefer_cache(average_tiles<E, Rule>, tiles_shared_bytes, 3);
        launch_early(average_tiles<E, Rule>, sums_.blocks(), block_threads, stream, payloads, rule_,
                     tile_, sums_.plan(), share, to);
      } else {
        const std::size_t pieces = (average.count + Rule::step - 1) / Rule::step;
        average_kernel<E><<<blocks_for(pieces), block_threads, 0, handle_of(stream)>>>(
            payloads, rule_, share, to);
      }
    });
    check_launch(name_);
  }

  void conclude(const CodedStep& step, float fill) override {
    conclude_with(rule_, step, fill, name_);
  }

 private:
  template <typename E, unsigned size>
  void launch(const CodedStep& step, std::uint32_t done) const {
    constexpr unsigned teams = block_size<size> / size;
    const std::size_t groups = (rule_.elements + rule_.group - 1) / rule_.group - done;
    const std::size_t shared = teams * rule_.room_bytes();
    const auto kernel = encode_kernel<E, size, Rule>;
    allow_shared_memory(kernel, shared);
    kernel<<<blocks_for(groups, teams), block_size<size>, shared, handle_of(step.stream)>>>(
        feed_of<E>(step), rule_, step.key, step.payload, done, step.frame, step.verdict);
  }

  const char* name_;
  Rule rule_;
  std::size_t bytes_;
  std::uint32_t tile_ = 0;  // elements; 0: groups too long for tiles
  block_frame::FrameSums sums_;
};

}  // namespace thinwire::coded
