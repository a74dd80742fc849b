// sites.h: topk under another name, which notes for which sites compressors are made: "1 of 2
// sends", "0 of 1 reads". Who only reads needs no memory, and no test of results would see it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "thinwire/compress/registry.h"
#include "thinwire/compress/sparse.h"

namespace thinwire::testing {

struct Sites {
  static inline std::mutex mutex;
  static inline std::vector<std::string> made;

  // The scheme's configuration; call it before threads start.
  static Config config() {
    static const Scheme scheme = [] {
      Scheme own = find_scheme("topk");
      own.name = "sites";
      own.id = 200;
      own.make = [](const Options& options, const Bucket& bucket,
                    const Site& site) -> std::unique_ptr<Compressor> {
        const std::lock_guard lock(mutex);
        made.push_back(std::to_string(site.rank) + " of " + std::to_string(site.world) +
                       (site.sends ? " sends" : " reads") + (site.sums ? " or sums" : ""));
        SparseSettings settings;
        settings.scheme = 200;
        settings.memory.accumulate = Accumulate::residual;
        read_sparse_options(options, settings);
        return std::make_unique<SparseCompressor>(settings, bucket, site);
      };
      return own;
    }();
    static const bool registered = (register_scheme(scheme), true);
    (void)registered;
    return Config{scheme.name, {}};
  }

  // What was made since the last call, sorted.
  static std::vector<std::string> take() {
    const std::lock_guard lock(mutex);
    std::vector<std::string> all;
    all.swap(made);
    std::sort(all.begin(), all.end());
    return all;
  }
};

}  // namespace thinwire::testing
