// kind.cc: parses the kind of exchange, and checks what fits together.
// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/kind.h"

#include <charconv>

#include "thinwire/compress/registry.h"
#include "thinwire/core/error.h"

namespace thinwire {
namespace {

constexpr std::string_view second_key = "second=";

[[noreturn]] void refuse(std::string_view text) {
  fail("exchange '", text,
       "': expected auto, split or server:S (S server ranks), the last two with or without "
       ",second=SCHEME");
}

int parse_servers(std::string_view text, std::string_view number) {
  int servers = 0;
  const char* const end = number.data() + number.size();
  const char* const rest = std::from_chars(number.data(), end, servers).ptr;
  if (rest != end || servers < 1) refuse(text);  // too many digits leave 0
  return servers;
}

bool has_option(const Config& config, const std::string& name) {
  for (const Option& option : find_scheme(config.scheme).options) {
    if (option.name == name) return true;
  }
  return false;
}

// Whether momentum has an effect: an explicit 0 disables it.
bool accumulates(const Config& config) {
  const auto given = config.options.find("momentum");
  const bool off = given != config.options.end() && number_in(given->second) == 0;
  return keeps_momentum(config) && !off;
}

bool clips(const Config& config) {
  const auto given = config.options.find("clip");
  return given != config.options.end() && number_in(given->second) > 0;
}

// Whether a scheme sends frames in one round. It asks a compressor of a small bucket, because
// options may decide.
void require_gather(const ExchangeKind& kind, const Config& config) {
  const Site site{0, 2, false, false};
  const auto probe = make_compressor(config, Bucket::single(0, "probe", 64), site);
  if (probe->leg(0, 0).reduction != Reduction::gather) {
    fail("scheme '", config.str(), "' travels by all-reduce; exchange ", kind.str(),
         " needs one that gathers frames, such as topk or dgc; or use exchange auto");
  }
  if (probe->rounds() != 1) {
    fail("scheme '", config.str(), "' takes ", probe->rounds(), " rounds; exchange ", kind.str(),
         " needs one that takes a single round, such as topk or dgc; or use exchange auto");
  }
}

}  // namespace

ExchangeKind ExchangeKind::parse(std::string_view text) {
  ExchangeKind kind;
  std::string_view head = text.substr(0, text.find(','));
  if (head.starts_with("server:")) {
    kind.form = Form::server;
    kind.servers = parse_servers(text, head.substr(head.find(':') + 1));
  } else if (head == "server") {
    kind.form = Form::server;
    kind.servers = 1;
  } else if (head == "split") {
    kind.form = Form::split;
  } else if (head != "auto") {
    refuse(text);
  }
  if (head.size() == text.size()) return kind;
  const std::string_view rest = text.substr(head.size() + 1);
  if (!rest.starts_with(second_key) || !kind.striped()) refuse(text);
  kind.second = Config::parse(rest.substr(second_key.size()));
  return kind;
}

std::string ExchangeKind::str() const {
  if (!striped()) return "auto";
  std::string text = form == Form::split ? "split" : "server:" + std::to_string(servers);
  if (second) text += "," + std::string(second_key) + second->str();
  return text;
}

Config second_of(const ExchangeKind& kind, const Config& config) {
  if (kind.second) return *kind.second;
  Config second = config;
  if (keeps_momentum(config)) {
    if (has_option(config, "memory")) {
      second.options["memory"] = "residual";
    } else if (has_option(config, "momentum")) {
      second.options["momentum"] = "0";
    }  // else check_fit() asks for second=
    second.options.erase("nesterov");
  }
  for (const char* option : {"clip", "clip_norm"}) second.options.erase(option);
  return second;
}

void check_fit(const ExchangeKind& kind, const Config& config) {
  if (!kind.striped()) return;
  require_gather(kind, config);
  const Config second = second_of(kind, config);
  require_gather(kind, second);
  if (accumulates(second)) {
    fail("exchange ", kind.str(), ": scheme '", second.str(),
         "' accumulates momentum, but the second compressor works on averages of what the workers "
         "sent, where momentum has been applied; give a second= without, such as topk");
  }
  if (clips(second)) {
    fail("exchange ", kind.str(), ": scheme '", second.str(),
         "' clips gradients, but the second compressor works on averages; let the workers' scheme "
         "clip");
  }
}

void check_fit(const ExchangeKind& kind, int world) {
  if (kind.workers(world) >= 1) return;
  fail("exchange ", kind.str(), ": expected at least ", kind.servers + 1, " ranks, ", kind.servers,
       " for the servers and one that works; the job has ", world);
}

}  // namespace thinwire
