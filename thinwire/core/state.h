// state.h: named state that must survive a restart. A class describes its state once, in
// visit_state(). Saving, loading, and the rule for a changed number of workers (Share) follow from
// it.
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
  summed,  // this worker's part of a sum (a residual): the sum is kept when the number of workers
           // changes
  replicated,  // the same on every worker
  local,       // a hint of this worker (a threshold): it may be dropped and found again
};

class StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  virtual void tensor(const std::string& name, std::span<float> values, Share share) = 0;
  virtual void number(const std::string& name, double& value, Share share) = 0;
};

// Visits a bucket-long array slice by slice, under the names of its parameters ("layer1.weight/u").
void visit_by_parameter(StateVisitor& visitor, const Bucket& bucket, const std::string& suffix,
                        std::span<float> values, Share share);

// A saved state in memory: name -> numbers. The map is ordered, so that equal states have equal
// bytes.
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

// Copies `state` back into everything visited. Throws an Error that names the entry when it is
// missing, has another size, or has an element that is not finite. That entry is then unchanged,
// but earlier entries are loaded already: load into new objects, or save first, to be able to go
// back.
class StateLoader final : public StateVisitor {
 public:
  explicit StateLoader(const State& state) : state_(state) {}
  void tensor(const std::string& name, std::span<float> values, Share share) override;
  void number(const std::string& name, double& value, Share share) override;

 private:
  const StateEntry& find(const std::string& name, bool tensor) const;
  const State& state_;
};

// The bytes of a state: magic, version, entries, CRC-32C; little-endian. docs/wire_format.md
// describes the layout.
std::vector<std::byte> serialize(const State& state);
Status deserialize(ConstBytes bytes, State& state);

// The same as a file. It is written under another name and then renamed, so that a crash leaves
// either the old file or the new one.
void save_file(const std::string& path, const State& state);
State load_file(const std::string& path);

}  // namespace thinwire
