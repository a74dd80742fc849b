// through_host.cc: what a compressor reads and writes, copied down and up again.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/through_host.h"

#include <algorithm>
#include <utility>

#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/exchange/as_device.h"

namespace thinwire {
namespace {

class ThroughHost final : public Compressor {
 public:
  ThroughHost(std::unique_ptr<Compressor> inner, const Bucket& bucket, Device device)
      : inner_(as_device(std::move(inner), bucket.id)),
        device_(device),
        place_(place_beside(device)),
        gradient_(place_, bucket.elements() * size_of(bucket.dtype), device),
        notes_(place_, sizeof(Notes), device) {}

  int rounds() const override { return inner_->rounds(); }
  bool needs_norm() const override { return inner_->needs_norm(); }
  // Kernels of others put frames side by side, at multiples of 16 bytes.
  Leg leg(std::uint64_t step, int round) const override {
    Leg leg = inner_->leg(step, round);
    leg.in_place = false;
    if (gathers(leg)) leg.bytes = (leg.bytes + 15) / 16 * 16;
    return leg;
  }

  std::size_t encode(const Turn& turn, TensorView gradient, Bytes out) override {
    const Leg outer = leg(turn.step, turn.round), own = inner_->leg(turn.step, turn.round);
    if (own.reduction == Reduction::scatter) fail("a scheme that scatters needs kernels");
    if (turn.round == 0) copy(gradient_.data(), gradient.data, gradient_.size(), turn.stream);
    read(turn);
    grow(payload_, outer.bytes);
    std::fill_n(payload_.data(), payload_.size(), std::byte{});
    const Bytes room =
        own.in_place ? Bytes(gradient_.data(), own.bytes) : Bytes(payload_.data(), own.bytes);
    inner_->encode(inside(turn), here(gradient), room);
    copy(out.data(), room.data(), own.bytes, turn.stream);
    if (own.bytes < outer.bytes)
      copy(out.data() + own.bytes, payload_.data() + own.bytes, outer.bytes - own.bytes,
           turn.stream);
    if (gathers(own)) copy(turn.written, &notes().written, sizeof notes().written, turn.stream);
    tell(turn);
    return outer.bytes;
  }

  Status decode(const Turn& turn, const Inbox& inbox, TensorView average) override {
    const Leg own = inner_->leg(turn.step, turn.round);
    grow(arrived_, inbox.data.size());
    copy(arrived_.data(), inbox.data.data(), inbox.data.size(), turn.stream);
    read(turn);
    Inbox near = inbox;
    near.data = {arrived_.data(), inbox.data.size()};
    if (own.in_place) std::copy_n(arrived_.data(), own.bytes, gradient_.data());
    const Status status = inner_->decode(inside(turn), near, here(average));
    tell(turn);
    const bool last = turn.round + 1 == rounds();
    if (last && !notes().verdict.void_step() && notes().verdict.unsound == 0)
      copy(average.data, gradient_.data(), gradient_.size(), turn.stream);
    wait(turn.stream);  // the memory here is written again soon
    return status;
  }

  void undo(const Turn&) override { fail("on a device a step ends with conclude()"); }

  void conclude(const Turn& turn, TensorView gradient, float fill) override {
    read(turn);
    if (!notes().verdict.void_step()) return;
    // An owner of a stripe has had an average here since.
    copy(gradient_.data(), gradient.data, gradient_.size(), turn.stream);
    wait(turn.stream);
    inner_->conclude(inside(turn), here(gradient), fill);
    copy(gradient.data, gradient_.data(), gradient_.size(), turn.stream);
    wait(turn.stream);
  }

  void keep(const Turn& turn) override { inner_->keep(turn); }
  void restore(const Turn& turn) override {
    read(turn);
    inner_->restore(inside(turn));
  }

  void visit_state(StateVisitor& visitor) override { inner_->visit_state(visitor); }

 private:
  // What a device has in its memory, and the compressor sees here.
  struct Notes {
    Verdict verdict;
    std::uint64_t written = 0;
    double norm = 0;
  };

  static bool gathers(const Leg& leg) { return leg.reduction == Reduction::gather; }

  Notes& notes() const { return *notes_.as<Notes>(); }

  void grow(Buffer& buffer, std::size_t bytes) const {
    if (buffer.size() < bytes) buffer = Buffer(place_, bytes, device_);
  }

  void copy(void* to, const void* from, std::size_t bytes, Stream stream) const {
    if (place_ == Place::pinned) return copy_bytes(to, from, bytes, stream);
    std::copy_n(static_cast<const std::byte*>(from), bytes, static_cast<std::byte*>(to));
  }

  void wait(Stream stream) const {
    if (place_ == Place::pinned) synchronize(stream);
  }

  void read(const Turn& turn) const {
    copy(&notes().verdict, turn.verdict, sizeof(Verdict), turn.stream);
    if (turn.norm != nullptr) copy(&notes().norm, turn.norm, sizeof(double), turn.stream);
    wait(turn.stream);
  }
  void tell(const Turn& turn) const {
    copy(turn.verdict, &notes().verdict, sizeof(Verdict), turn.stream);
    wait(turn.stream);
  }

  Turn inside(const Turn& turn) const {
    Turn inside{turn.step, turn.round, {}};
    inside.verdict = &notes().verdict;
    inside.written = &notes().written;
    inside.norm = turn.norm == nullptr ? nullptr : &notes().norm;
    return inside;
  }

  // The gradient here, and in its place the average.
  TensorView here(const TensorView& there) const {
    return {gradient_.data(), there.count, there.dtype, {}};
  }

  std::unique_ptr<Compressor> inner_;
  Device device_;
  Place place_;
  Buffer gradient_, notes_;
  Buffer payload_, arrived_;
};

}  // namespace

std::unique_ptr<Compressor> through_host(std::unique_ptr<Compressor> compressor,
                                         const Bucket& bucket, Device device) {
  return std::make_unique<ThroughHost>(std::move(compressor), bucket, device);
}

}  // namespace thinwire
