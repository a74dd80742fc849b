// nohwy.cc: the kernels without Highway: each one calls its plain reference.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/error.h"
#include "thinwire/kernels/average.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/csc.h"
#include "thinwire/kernels/dgc.h"
#include "thinwire/kernels/int8.h"
#include "thinwire/kernels/limit.h"
#include "thinwire/kernels/natural.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/kernels/powersgd.h"
#include "thinwire/kernels/qsgd.h"
#include "thinwire/kernels/sgd.h"
#include "thinwire/kernels/sign.h"
#include "thinwire/kernels/signum.h"
#include "thinwire/kernels/symmetric.h"
#include "thinwire/kernels/target.h"
#include "thinwire/kernels/terngrad.h"
#include "thinwire/kernels/threshold.h"

namespace thinwire {

bool scale_finite(float* x, std::size_t count, float factor) {
  return scale_finite_reference(x, count, factor);
}

void cast_to_f16(const float* x, std::uint16_t* out, std::size_t count, float factor) {
  cast_to_f16_reference(x, out, count, factor);
}

void cast_to_bf16(const float* x, std::uint16_t* out, std::size_t count, float factor) {
  cast_to_bf16_reference(x, out, count, factor);
}

bool cast_from_f16(const std::uint16_t* x, float* out, std::size_t count, float factor) {
  return cast_from_f16_reference(x, out, count, factor);
}

bool cast_from_bf16(const std::uint16_t* x, float* out, std::size_t count, float factor) {
  return cast_from_bf16_reference(x, out, count, factor);
}

void add_f16(std::uint16_t* into, const std::uint16_t* from, std::size_t count) {
  add_f16_reference(into, from, count);
}

void add_bf16(std::uint16_t* into, const std::uint16_t* from, std::size_t count) {
  add_bf16_reference(into, from, count);
}

double csc_pass(const MemoryRule& rule, const float* g, float* u, float* v, std::size_t count) {
  return csc_pass_reference(rule, g, u, v, count);
}

DgcTally dgc_pass(const DgcRule& rule, const float* g, float* u, float* v, std::size_t count,
                  std::uint32_t first, const Picked& out) {
  return dgc_pass_reference(rule, g, u, v, count, first, out);
}

bool int8_encode(const Int8Rule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                 std::uint32_t first, std::uint8_t* out) {
  return int8_encode_reference(rule, g, v, count, key, first, out);
}

bool int8_add(const Int8Rule& rule, const std::uint8_t* in, std::size_t count, float share,
              float* target) {
  return int8_add_reference(rule, in, count, share, target);
}

bool all_within_limit(const float* x, std::size_t count) {
  return all_within_limit_reference(x, count);
}

bool powersgd_take(const Panel& panel, const float* g, float* e, const float* q, float* p) {
  return powersgd_take_reference(panel, g, e, q, p);
}

void powersgd_project(const Panel& panel, const float* e, const float* p, float* q) {
  powersgd_project_reference(panel, e, p, q);
}

void powersgd_give(const Panel& panel, const float* p, const float* q, float* average) {
  powersgd_give_reference(panel, p, q, average);
}

void powersgd_settle(const Panel& panel, const float* p, const float* q, float* e) {
  powersgd_settle_reference(panel, p, q, e);
}

bool natural_encode(const float* g, float* v, std::size_t count, DrawKey key, std::uint32_t first,
                    std::uint8_t* exponents, std::uint8_t* signs) {
  return natural_encode_reference(g, v, count, key, first, exponents, signs);
}

bool natural_add(const std::uint8_t* exponents, const std::uint8_t* signs, std::size_t count,
                 float share, float* target) {
  return natural_add_reference(exponents, signs, count, share, target);
}

double squared_norm(const float* x, std::size_t count) { return squared_norm_reference(x, count); }

bool qsgd_encode(const QsgdRule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                 std::uint32_t first, std::uint8_t* out) {
  return qsgd_encode_reference(rule, g, v, count, key, first, out);
}

bool qsgd_add(const QsgdRule& rule, const std::uint8_t* in, std::size_t count, float share,
              float* target) {
  return qsgd_add_reference(rule, in, count, share, target);
}

bool qsgd_quantise(const QsgdRule& rule, const float* g, float* v, std::size_t count, DrawKey key,
                   std::uint32_t first, float& norm, std::uint8_t* levels, std::uint8_t* signs) {
  return qsgd_quantise_reference(rule, g, v, count, key, first, norm, levels, signs);
}

void qsgd_apply(const QsgdRule& rule, float norm, const std::uint8_t* levels,
                const std::uint8_t* signs, std::size_t count, float share, float* target) {
  qsgd_apply_reference(rule, norm, levels, signs, count, share, target);
}

void sgd_step(const SgdRule& rule, const float* average, float* w, float* s, std::size_t count) {
  sgd_step_reference(rule, average, w, s, count);
}

SignSums sign_scan(const float* g, const float* r, std::size_t count, std::uint8_t* bits) {
  return sign_scan_reference(g, r, count, bits);
}

void sign_settle(const float* g, float* r, std::size_t count, float high, float low) {
  sign_settle_reference(g, r, count, high, low);
}

void sign_add(const std::uint8_t* bits, std::size_t count, float high, float low, float* target) {
  sign_add_reference(bits, count, high, low, target);
}

bool signum_pass(float momentum, const float* g, float* m, std::size_t count,
                 std::uint8_t* negative, std::uint8_t* zero) {
  return signum_pass_reference(momentum, g, m, count, negative, zero);
}

void symmetric_gram(const double* a, std::size_t rows, std::size_t stride, double* g) {
  symmetric_gram_reference(a, rows, stride, g);
}

void symmetric_step(double* g, std::size_t size, std::size_t stride, const double* u,
                    const double* w, const double* v, double* product) {
  symmetric_step_reference(g, size, stride, u, w, v, product);
}

LayerStatistics layer_statistics(const float* x, std::size_t count) {
  return layer_statistics_reference(x, count);
}

void terngrad_quantise(const float* x, std::size_t count, float scale, float clip, DrawKey key,
                       std::uint32_t first, std::int8_t* out) {
  terngrad_quantise_reference(x, count, scale, clip, key, first, out);
}

void terngrad_pack(const std::int8_t* values, std::size_t count, std::uint8_t* out) {
  terngrad_pack_reference(values, count, out);
}

void terngrad_encode(const float* x, std::size_t count, float scale, float clip, DrawKey key,
                     std::uint32_t first, std::uint8_t* out) {
  terngrad_encode_reference(x, count, scale, clip, key, first, out);
}

bool terngrad_add(const std::uint8_t* in, std::size_t count, std::int16_t* sums) {
  return terngrad_add_reference(in, count, sums);
}

ThresholdTally threshold_pass(float tau, const float* g, float* r, std::size_t count,
                              std::uint8_t* plus, std::uint8_t* minus) {
  return threshold_pass_reference(tau, g, r, count, plus, minus);
}

std::vector<std::string> kernel_targets() { return {"reference"}; }

void force_kernel_target(const std::string& name) {
  if (!name.empty() && name != "reference") {
    fail("force_kernel_target: '", name, "' needs a build with Highway");
  }
}

}  // namespace thinwire
