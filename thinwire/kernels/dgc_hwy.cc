// dgc_hwy.cc: Deep Gradient Compression with the widest vectors of the machine.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/dgc.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "thinwire/kernels/dgc_hwy.cc"
#include <hwy/foreach_target.h>
// Highway requires this include after foreach_target.h.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace thinwire {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One call of the pass. Functions that may pick survivors take the number picked so far and return
// the new number. A count in memory would make each vector wait for the stores of the previous one.
template <Accumulate accumulate>
class Pass {
 public:
  using D = hn::ScalableTag<float>;
  using V = hn::Vec<D>;
  static constexpr bool has_v = has_residual(accumulate);
  static constexpr bool has_u = has_momentum(accumulate);

  Pass(const DgcRule& rule, const float* g, float* u, float* v, std::uint32_t first,
       const Picked& out)
      : rule_(rule), g_(g), u_(u), v_(v), first_(first), out_(out) {}

  DgcTally run(std::size_t count) {
    const std::size_t lanes = hn::Lanes(D());
    const std::size_t end = count - count % (4 * lanes);
    std::size_t i = quiet(0, end), picked = 0;
    while (i < end) {
      picked = four(i, lanes, picked);
      i = quiet(i + 4 * lanes, end);
    }
    for (; count - i >= lanes; i += lanes) picked = one(i, picked);
    return rest(i, count, picked);
  }

 private:
  struct Factors {
    V scale, momentum, rest, over_momentum, over_rest, half, slow, one;
  };

  HWY_INLINE Factors factors() const {
    const D d;
    const PoolFactors pool = pool_factors(rule_.momentum);
    return {hn::Set(d, rule_.scale),    hn::Set(d, pool.momentum),
            hn::Set(d, pool.rest),      hn::Set(d, pool.over_momentum),
            hn::Set(d, pool.over_rest), hn::Set(d, pool.half),
            hn::Set(d, pool.slow),      hn::Set(d, 1.0f)};
  }

  // Computes u' and v' of the vector at i, and returns d.
  static HWY_INLINE V advance(const float* g, const float* old_u, const float* old_v, std::size_t i,
                              const Factors& by, V& u, V& v) {
    const D d;
    const V momentum = by.momentum;
    const V step = hn::Mul(by.scale, hn::LoadU(d, g + i));
    if constexpr (accumulate == Accumulate::pool) {  // pooled(), operation by operation
      const V tail = hn::Mul(momentum, hn::LoadU(d, old_u + i));
      const V before = hn::Add(hn::Mul(by.rest, hn::LoadU(d, old_v + i)), tail);
      const V ratio = hn::Div(tail, before);
      const V share = hn::IfThenElse(hn::Le(ratio, by.one), ratio, by.one);
      const V slow = hn::Min(hn::Mul(by.slow, share), by.half);
      const V most = hn::Max(hn::Mul(momentum, share), slow);
      const V kept = hn::IfThenElseZero(hn::Gt(most, hn::Zero(d)), most);
      const V pool = hn::Add(before, step);
      v = hn::Mul(hn::Mul(hn::Sub(by.one, kept), by.over_rest), pool);
      u = hn::Mul(hn::Mul(kept, by.over_momentum), pool);
    } else if constexpr (!has_v) {
      v = step;
    } else if constexpr (!has_u) {
      v = hn::Add(hn::LoadU(d, old_v + i), step);
    } else if constexpr (accumulate == Accumulate::momentum) {
      u = hn::Add(hn::Mul(momentum, hn::LoadU(d, old_u + i)), step);
      v = hn::Add(hn::LoadU(d, old_v + i), u);
    } else {
      u = hn::Mul(momentum, hn::Add(hn::LoadU(d, old_u + i), step));
      v = hn::Add(hn::LoadU(d, old_v + i), hn::Add(u, step));
    }
    return step;
  }

  static HWY_INLINE void store(float* u_at, float* v_at, std::size_t i, V u, V v) {
    if constexpr (has_u) hn::StoreU(u, D(), u_at + i);
    if constexpr (has_v) hn::StoreU(v, D(), v_at + i);
  }

  static HWY_INLINE hn::Mask<D> is_below(V v, V threshold) { return hn::Lt(hn::Abs(v), threshold); }

  static HWY_INLINE hn::Mask<D> is_sound(V step) {
    return hn::Le(hn::Abs(step), hn::Set(D(), gradient_limit));
  }

  static HWY_INLINE bool all(hn::Mask<D> a, hn::Mask<D> b, hn::Mask<D> c, hn::Mask<D> d) {
    return hn::AllTrue(D(), hn::And(hn::And(a, b), hn::And(c, d)));
  }

  // Processes groups of four vectors while no element survives and none is refused, which is the
  // usual case. Stops before the first other group, which it leaves unchanged, and returns its
  // position. All values are local, so that the loop keeps them in registers across its own stores.
  HWY_INLINE std::size_t quiet(std::size_t i, std::size_t end) const {
    const D d;
    const std::size_t lanes = hn::Lanes(d);
    const Factors by = factors();
    const V threshold = hn::Set(d, rule_.threshold);
    const float* HWY_RESTRICT g = g_;
    float* HWY_RESTRICT u_at = u_;
    float* HWY_RESTRICT v_at = v_;
    for (; i < end; i += 4 * lanes) {
      const std::size_t i1 = i + lanes, i2 = i1 + lanes, i3 = i2 + lanes;
      V u0 = hn::Zero(d), u1 = u0, u2 = u0, u3 = u0, v0 = u0, v1 = u0, v2 = u0, v3 = u0;
      const V d0 = advance(g, u_at, v_at, i, by, u0, v0);
      const V d1 = advance(g, u_at, v_at, i1, by, u1, v1);
      const V d2 = advance(g, u_at, v_at, i2, by, u2, v2);
      const V d3 = advance(g, u_at, v_at, i3, by, u3, v3);
      if (HWY_UNLIKELY(!all(hn::And(is_below(v0, threshold), is_sound(d0)),
                            hn::And(is_below(v1, threshold), is_sound(d1)),
                            hn::And(is_below(v2, threshold), is_sound(d2)),
                            hn::And(is_below(v3, threshold), is_sound(d3)))))
        break;
      store(u_at, v_at, i, u0, v0);
      store(u_at, v_at, i1, u1, v1);
      store(u_at, v_at, i2, u2, v2);
      store(u_at, v_at, i3, u3, v3);
    }
    return i;
  }

  // Four vectors with a survivor. All four are compressed, because a mispredicted branch would cost
  // more.
  HWY_INLINE std::size_t four(std::size_t i, std::size_t lanes, std::size_t picked) {
    const std::size_t i1 = i + lanes, i2 = i1 + lanes, i3 = i2 + lanes;
    V u0 = hn::Zero(D()), u1 = u0, u2 = u0, u3 = u0, v0 = u0, v1 = u0, v2 = u0, v3 = u0;
    const V d0 = advance(i, u0, v0), d1 = advance(i1, u1, v1);
    const V d2 = advance(i2, u2, v2), d3 = advance(i3, u3, v3);
    if (HWY_LIKELY(all(is_sound(d0), is_sound(d1), is_sound(d2), is_sound(d3)))) {
      return take(i3, u3, v3, take(i2, u2, v2, take(i1, u1, v1, take(i, u0, v0, picked))));
    }
    return one(i3, one(i2, one(i1, one(i, picked))));
  }

  HWY_INLINE V advance(std::size_t i, V& u, V& v) const {
    return advance(g_, u_, v_, i, factors(), u, v);
  }

  // One vector, in the general case.
  HWY_NOINLINE std::size_t one(std::size_t i, std::size_t picked) {
    const D d;
    V u = hn::Zero(d), v = u;
    const auto sound = is_sound(advance(i, u, v));
    if (hn::AllTrue(d, sound)) return take(i, u, v, picked);
    finite_ = false;
    V old_u = hn::Zero(d), old_v = old_u;
    if constexpr (has_u) old_u = hn::LoadU(d, u_ + i);
    if constexpr (has_v) old_v = hn::LoadU(d, v_ + i);
    const auto taken = hn::And(sound, passes(v));
    picked = append(i, u, v, taken, picked);
    keep(i, hn::IfThenElse(sound, hn::IfThenZeroElse(taken, u), old_u),
         hn::IfThenElse(sound, hn::IfThenZeroElse(taken, v), old_v));
    return picked;
  }

  // One vector that is known to be within the limit.
  HWY_INLINE std::size_t take(std::size_t i, V u, V v, std::size_t picked) const {
    const auto taken = passes(v);
    keep(i, hn::IfThenZeroElse(taken, u), hn::IfThenZeroElse(taken, v));
    return append(i, u, v, taken, picked);
  }

  HWY_INLINE hn::Mask<D> passes(V v) const {
    return hn::Ge(hn::Abs(v), hn::Set(D(), rule_.threshold));
  }

  HWY_INLINE void keep(std::size_t i, V u, V v) const { store(u_, v_, i, u, v); }

  // Writes whole vectors: picked <= i, so they end inside the lists. A compressing store would
  // write less, but it is microcode on Zen 4.
  HWY_INLINE std::size_t append(std::size_t i, V u, V v, hn::Mask<D> taken,
                                std::size_t picked) const {
    const D d;
    const hn::RebindToUnsigned<D> du;
    // Iota of a constant is one load. Iota of a variable goes through memory and stalls.
    const auto index =
        hn::Add(hn::Set(du, first_ + static_cast<std::uint32_t>(i)), hn::Iota(du, 0));
    hn::StoreU(hn::Compress(index, hn::RebindMask(du, taken)), du, out_.index + picked);
    hn::StoreU(hn::Compress(v, taken), d, out_.value + picked);
    if constexpr (has_u) hn::StoreU(hn::Compress(u, taken), d, out_.velocity + picked);
    return picked + hn::CountTrue(d, taken);
  }

  // The reference does the rest, which is shorter than a vector.
  DgcTally rest(std::size_t i, std::size_t count, std::size_t picked) const {
    const Picked out{out_.index + picked, out_.value + picked,
                     has_u ? out_.velocity + picked : nullptr};
    const DgcTally end =
        dgc_pass_reference(rule_, g_ + i, has_u ? u_ + i : nullptr, has_v ? v_ + i : nullptr,
                           count - i, first_ + static_cast<std::uint32_t>(i), out);
    return {picked + end.picked, finite_ && end.finite};
  }

  const DgcRule rule_;
  const float* g_;
  float* u_;
  float* v_;
  const std::uint32_t first_;
  const Picked out_;
  bool finite_ = true;
};

DgcTally DgcPass(const DgcRule& rule, const float* g, float* u, float* v, std::size_t count,
                 std::uint32_t first, const Picked& out) {
  switch (rule.accumulate) {
    case Accumulate::none:
      return Pass<Accumulate::none>(rule, g, u, v, first, out).run(count);
    case Accumulate::residual:
      return Pass<Accumulate::residual>(rule, g, u, v, first, out).run(count);
    case Accumulate::momentum:
      return Pass<Accumulate::momentum>(rule, g, u, v, first, out).run(count);
    case Accumulate::nesterov:
      return Pass<Accumulate::nesterov>(rule, g, u, v, first, out).run(count);
    case Accumulate::pool:
      return Pass<Accumulate::pool>(rule, g, u, v, first, out).run(count);
  }
  return {};
}

}  // namespace HWY_NAMESPACE
}  // namespace thinwire
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace thinwire {

HWY_EXPORT(DgcPass);

DgcTally dgc_pass(const DgcRule& rule, const float* g, float* u, float* v, std::size_t count,
                  std::uint32_t first, const Picked& out) {
  return HWY_DYNAMIC_DISPATCH(DgcPass)(rule, g, u, v, count, first, out);
}

}  // namespace thinwire
#endif
