// registry.cc: the table of schemes.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/compress/registry.h"

#include "thinwire/compress/schemes.h"
#include "thinwire/compress/widened.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"

namespace thinwire {

namespace {

constexpr std::uint8_t last_own_id = 127;

std::vector<const Scheme*>& table() {
  static std::vector<const Scheme*> table = {
      &dense_scheme(),    &fp16_scheme(),  &bf16_scheme(),     &topk_scheme(),
      &dgc_scheme(),      &csc_scheme(),   &onebit_scheme(),   &threshold_scheme(),
      &terngrad_scheme(), &qsgd_scheme(),  &powersgd_scheme(), &signum_scheme(),
      &efsign_scheme(),   &atomo_scheme(), &randomk_scheme(),  &natural_scheme(),
      &int8_scheme(),
  };
  return table;
}

}  // namespace

const std::vector<const Scheme*>& schemes() { return table(); }

void register_scheme(const Scheme& scheme) {
  if (scheme.name.empty() || scheme.make == nullptr)
    fail("scheme '", scheme.name, "': expected a name and a function that makes it");
  if (scheme.id <= last_own_id)
    fail("scheme '", scheme.name, "': expected an id above ", int{last_own_id},
         ", where none of ours will ever be, got ", int{scheme.id});
  for (const Scheme* other : table()) {
    if (other->name == scheme.name || other->id == scheme.id)
      fail("scheme '", scheme.name, "', id ", int{scheme.id}, ": there is '", other->name, "', id ",
           int{other->id});
  }
  table().push_back(&scheme);
}

const Scheme& find_scheme(std::string_view name) {
  std::string known;
  for (const Scheme* scheme : schemes()) {
    if (scheme->name == name) return *scheme;
    known += (known.empty() ? "" : ", ") + scheme->name;
  }
  fail("unknown scheme '", name, "'; known: ", known);
}

namespace {

constexpr const char* probe_name = "probe";

class ResidualFinder final : public StateVisitor {
 public:
  void tensor(const std::string& name, std::span<float>, Share share) override {
    found = found || (share == Share::summed && name == std::string(probe_name) + "/v");
  }
  void number(const std::string&, double&, Share) override {}

  bool found = false;
};

}  // namespace

// Asks a compressor, because any option may decide.
bool keeps_residual(const Config& config) {
  ResidualFinder finder;
  make_compressor(config, Bucket::single(0, probe_name, 64), {})->visit_state(finder);
  return finder.found;
}

bool keeps_momentum(const Config& config) {
  const auto memory = config.options.find("memory");
  return memory == config.options.end() ? find_scheme(config.scheme).momentum
                                        : memory->second == "momentum";
}

bool right_on_average(const Config& config) {
  const Scheme& scheme = find_scheme(config.scheme);
  if (scheme.unbiased) return scheme.unbiased(Options(config, scheme.options));
  return scheme.stochastic && !scheme.biased;
}

std::string why_on_host(const Config& config) {
  const Scheme& scheme = find_scheme(config.scheme);
  const char* const why =
      scheme.host == nullptr ? nullptr : scheme.host(Options(config, scheme.options));
  if (why != nullptr) return why;
  return scheme.cuda ? "" : "it has no kernels for CUDA";
}

namespace {

// Throws where the scheme cannot work on the site's device.
void check_site(const Config& config, const Scheme& scheme, const Site& site) {
  if (site.device.kind == Device::Kind::cpu) return;
  if (const std::string why = why_on_host(config); !why.empty()) {
    std::string others;
    for (const Scheme* other : schemes()) {
      if (other->cuda) others += (others.empty() ? "" : ", ") + other->name;
    }
    fail("scheme '", config.str(), "' does not run on CUDA: ", why, "; these do: ", others);
  }
  if (!has_cuda()) {
    fail("scheme '", scheme.name, "': the gradients are on cuda:", site.device.index,
         ", but this build of thinwire has no CUDA (-DTHINWIRE_CUDA=ON), or this machine no GPU");
  }
}

}  // namespace

std::unique_ptr<Compressor> make_compressor(const Config& config, const Bucket& bucket,
                                            const Site& site) {
  const Scheme& scheme = find_scheme(config.scheme);
  validate(bucket);
  if (site.world < 1 || site.rank < 0 || site.rank >= site.world) {
    fail("scheme '", scheme.name, "': expected a rank from 0 to ", site.world - 1, ", got ",
         site.rank);
  }
  check_site(config, scheme, site);
  const DeviceScope scope(site.device);
  const Options options(config, scheme.options);
  if (scheme.halves || site.device.kind != Device::Kind::cpu)
    return scheme.make(options, bucket, site);
  return widened(scheme.make(options, widened(bucket), site), bucket);
}

}  // namespace thinwire
