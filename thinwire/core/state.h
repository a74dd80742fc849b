// state.h: what must survive a restart, by name. A part with state describes it once, in
// visit_state(), and gets saving, loading and (by the kind of each entry) a rule for another number
// of workers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "thinwire/core/status.h"
#include "thinwire/core/view.h"

namespace thinwire {

enum class Share : std::uint8_t {
  summed,  // this worker's part of a whole (a residual): when the number of workers changes, the
           // sum is kept
  replicated,  // the same on every worker
  local,       // a hint of this worker (a threshold): may be dropped and found again
};

class StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  virtual void tensor(const std::string& name, std::span<float> values, Share share) = 0;
  virtual void number(const std::string& name, double& value, Share share) = 0;
};

// Visits the slices of a bucket-long array under their parameters' names: "layer1.weight/u" and so
// on.
void visit_by_parameter(StateVisitor& visitor, const Bucket& bucket, const std::string& suffix,
                        std::span<float> values, Share share);

// The saved form in memory: name -> numbers. A map, so that two equal states have equal bytes.
struct StateEntry {
  Share share = Share::local;
  std::vector<float> values;  // of a tensor
  double number = 0;          // of a number; `values` is then empty
  bool is_tensor = false;

  bool operator==(const StateEntry&) const = default;
};
using State = std::map<std::string, StateEntry>;

// Copies everything visited into `state`.
class StateSaver final : public StateVisitor {
 public:
  explicit StateSaver(State& state) : state_(state) {}
  void tensor(const std::string& name, std::span<float> values, Share share) override;
  void number(const std::string& name, double& value, Share share) override;

 private:
  State& state_;
};

// Copies `state` back into everything visited. A missing entry, another size, or an element that is
// not finite throws an Error that names it, before anything of that entry is changed; load into freshly made parts, or save first,
// when half a load would hurt.
class StateLoader final : public StateVisitor {
 public:
  explicit StateLoader(const State& state) : state_(state) {}
  void tensor(const std::string& name, std::span<float> values, Share share) override;
  void number(const std::string& name, double& value, Share share) override;

 private:
  const StateEntry& find(const std::string& name, bool tensor) const;
  const State& state_;
};

// The bytes of a state: magic, version, entries, CRC-32C; little-endian. docs/wire_format.md has
// the layout.
std::vector<std::byte> serialize(const State& state);
Status deserialize(ConstBytes bytes, State& state);

// The same as a file, written beside and renamed, so that a crash leaves the old file or the new
// one.
void save_file(const std::string& path, const State& state);
State load_file(const std::string& path);

}  // namespace thinwire
