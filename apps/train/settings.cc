// settings.cc: flags to values, with a sentence for each that cannot be used.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/settings.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>

#include "apps/verb.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/error.h"
#include "thinwire/delay/fit.h"

namespace thinwire::train {
namespace {

using apps::BadInput;

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

void add_task(CLI::App& verb, Settings& s) {
  verb.add_option("--model", s.model, "The network; see below")->capture_default_str();
  verb.add_option("--data", s.data, "The data; see below")->capture_default_str();
  verb.add_option("--partition", s.partition,
                  "Who trains on what: iid (all share all), contiguous, or dirichlet:ALPHA")
      ->type_name("KIND")
      ->capture_default_str();
  verb.add_option("--workers", s.workers, "Worker processes to start here")
      ->check(CLI::Range(1, 256));
  verb.add_option("--scheme", s.scheme, "How gradients travel; see `thinwire schemes`")
      ->type_name("NAME:KEY=VALUE,...")
      ->capture_default_str();
  verb.add_option("--exchange", s.exchange,
                  "auto, split (split-reduce), or server:S (S server processes besides)")
      ->type_name("KIND")
      ->capture_default_str();
  verb.add_option("--batch", s.batch, "Examples per worker and backward pass")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  verb.add_option("--accumulate", s.accumulate, "Backward passes per step")
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 20))
      ->capture_default_str();
  verb.add_option("--sequence", s.sequence, "Tokens per example of a language model")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  verb.add_option("--precision", s.precision, "f32, or bf16: computes in bf16, weights stay f32")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  verb.add_option("--seed", s.seed, "Of weights, batches and dropout")->capture_default_str();
}

void add_length(CLI::App& verb, Settings& s) {
  auto* steps = verb.add_option("--steps", s.steps, "Steps of the whole training")
                    ->check(CLI::PositiveNumber);
  verb.add_option("--epochs", s.epochs, "The same in passes over the data")
      ->check(CLI::PositiveNumber)
      ->excludes(steps)
      ->capture_default_str();
  verb.add_option("--stop", s.stop, "End after this step; schedules still follow --steps")
      ->check(CLI::PositiveNumber);
}

void add_optimizer(CLI::App& verb, Settings& s) {
  verb.add_option("--optimizer", s.optimizer, "sgd, adam or adamw")
      ->check(CLI::IsMember({"sgd", "adam", "adamw"}))
      ->capture_default_str();
  verb.add_option("--lr", s.rate, "Highest learning rate; default 0.1, of adam and adamw 0.001")
      ->check(CLI::PositiveNumber);
  verb.add_option("--momentum", s.momentum, "Of SGD, or inside the scheme; default 0.9")
      ->check(CLI::Range(0.0, 0.999999));
  verb.add_flag("--nesterov", s.nesterov, "Nesterov's form of momentum");
  verb.add_option("--beta1", s.beta1, "Of adam and adamw: decay of the mean; default 0.9")
      ->check(CLI::Range(0.0, 0.999999));
  verb.add_option("--beta2", s.beta2, "... and of the mean square; default 0.999")
      ->check(CLI::Range(0.0, 0.999999));
  verb.add_option("--epsilon", s.epsilon, "... and what is added to its root; default 1e-8");
  verb.add_option("--weight-decay", s.decay, "L2 term, from the weights; of adamw: decay itself")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  verb.add_option("--clip", s.clip, "Largest norm of the gradient; 0: none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  verb.add_option("--schedule", s.schedule, "constant, linear, cosine, or step:EPOCH,EPOCH,...")
      ->capture_default_str();
  verb.add_option("--lr-warmup", s.rate_warmup, "Steps over which the learning rate rises")
      ->capture_default_str();
}

void add_machine(CLI::App& verb, Settings& s) {
  verb.add_option("--bucket-mb", s.bucket_mb, "Megabytes of gradients that travel together")
      ->check(CLI::Range(0.001, 4096.0))
      ->capture_default_str();
  verb.add_option("--fuse-mb", s.fuse_mb,
                  "All-reduces of fewer megabytes wait for each other and travel as one; 0: none")
      ->check(CLI::Range(0.0, 4096.0))
      ->capture_default_str();
  verb.add_option("--timeout", s.timeout, "Seconds after which a silent worker ends the job")
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
  verb.add_option("--device", s.device,
                  "cpu, or cuda: the model lives on a GPU; workers share those there are")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  verb.add_option("--threads", s.threads, "Threads per worker; default 1 beside others")
      ->check(CLI::Range(1, 1024));
}

void add_wire(CLI::App& verb, Settings& s) {
  verb.add_option("--link", s.link,
                  "Emulate a link of this bandwidth and latency; may go on with jitter=5ms, "
                  "outage=LENGTH/EVERY (such as 2s/30s) and seed=N")
      ->type_name("100mbit,1ms");
  verb.add_option("--engine", s.engine, "gloo, mpi (under mpirun), or nccl (a GPU for each worker)")
      ->check(CLI::IsMember({"gloo", "mpi", "nccl"}))
      ->capture_default_str();
}

void add_delay(CLI::App& verb, Settings& s) {
  verb.add_option("--delay", s.delay,
                  "Delayed averaging: steps that a message may be under way, or auto:MOST")
      ->type_name("D");
  verb.add_option("--local-steps", s.local_steps, "... steps per message; default 1")
      ->check(CLI::Range(1, 100000))
      ->type_name("K");
  verb.add_option("--correction", s.correction,
                  "... how what arrives is taken in: soft, ledger, published, pull or none")
      ->type_name("NAME[:KEY=VALUE,...]");
}

void add_files(CLI::App& verb, Settings& s) {
  verb.add_option("--save", s.save, "Checkpoint, as FILE.rankR, at the end")->type_name("FILE");
  verb.add_option("--save-every", s.save_every, "... and every N steps")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  verb.add_option("--resume", s.resume, "Go on from this checkpoint")->type_name("FILE");
  verb.add_option("--check-every", s.check_every,
                  "Compare the replicas every N steps; 0: at the end")
      ->capture_default_str()
      ->type_name("N");
  verb.add_option("--eval-every", s.eval_every, "Evaluate every N steps; always at the end")
      ->type_name("N");
  verb.add_option("--report-every", s.report_every, "A row every N steps; default about 20 in all")
      ->type_name("N");
  verb.add_option("--trace", s.trace, "Rank 0's first 100 steps, in Chrome trace format")
      ->type_name("FILE");
  // For tests: a NaN in one rank's gradient. In no group, so not in --help.
  verb.add_option("--nan-at", s.nan_at, "STEP,RANK")->group("");
}

void check_folder(const std::string& flag, const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (path.empty() || folder.empty() || std::filesystem::is_directory(folder)) return;
  throw BadInput(flag + ": there is no folder '" + folder.string() + "' to write '" + path +
                 "' into");
}

bool has_option(const Scheme& scheme, const std::string& name) {
  return std::any_of(scheme.options.begin(), scheme.options.end(),
                     [&](const Option& option) { return option.name == name; });
}

// A flag that the scheme knows too. Given twice, the two must agree: one of them would be silently
// without effect.
void hand_over(Config& config, const std::string& flag, const std::string& option,
               const std::string& value) {
  const auto [place, fresh] = config.options.try_emplace(option, value);
  if (fresh || place->second == value) return;
  throw BadInput(flag + " " + value + " contradicts " + option + "=" + place->second +
                 " of scheme " + config.scheme + "; give one of them");
}

void check_scheme(Settings& s) {
  s.config = apps::parse_scheme(s.scheme);
  const Scheme& scheme = find_scheme(s.config.scheme);
  if (s.delayed) {
    // The updates that travel have the optimizer's momentum, and its clipping, already.
    if (keeps_momentum(s.config) && has_option(scheme, "momentum"))
      hand_over(s.config, "--delay", "momentum", "0");
  } else if (keeps_momentum(s.config)) {
    if (s.momentum) hand_over(s.config, "--momentum", "momentum", text_of(*s.momentum));
    if (s.nesterov) hand_over(s.config, "--nesterov", "nesterov", "on");
  }
  const bool clips = has_option(scheme, "clip") && !s.delayed;
  if (s.clip > 0 && clips) hand_over(s.config, "--clip", "clip", text_of(s.clip));
  s.clip_average = s.clip > 0 && !clips;
  s.config = apps::parse_scheme(s.config.str());
  if (s.nesterov && s.momentum && *s.momentum == 0)
    throw BadInput("--nesterov needs a --momentum above 0");
}

// After check_scheme(): what is refused here is refused for its reason, see "With Adam" in
// docs/schemes.md.
void check_optimizer(Settings& s) {
  const bool adam = s.optimizer != "sgd";
  if (s.rate == 0) s.rate = adam ? 0.001 : 0.1;
  if (!adam) {
    if (s.beta1 || s.beta2 || s.epsilon)
      throw BadInput("--beta1, --beta2 and --epsilon need --optimizer adam or adamw");
    return;
  }
  const std::string flag = "--optimizer " + s.optimizer;
  if (s.momentum || s.nesterov)
    throw BadInput(flag + " has no --momentum and no --nesterov; it has --beta1");
  if (s.epsilon && !(*s.epsilon >= 1e-30))  // 0 / 0 where a gradient was never other than 0
    throw BadInput("--epsilon: expected at least 1e-30, got " + text_of(*s.epsilon));
  if (!keeps_momentum(s.config) || s.delayed) return;
  if (s.config.scheme == "signum")
    throw BadInput(flag +
                   ": scheme signum gives the sign of a vote, not a gradient, and there is " +
                   "nothing left to scale; use --optimizer sgd, or another scheme");
  throw BadInput(flag + ": scheme " + s.config.str() +
                 " accumulates momentum itself, and Adam would take the momentum of a momentum; " +
                 "use --optimizer sgd, or a scheme without momentum");
}

void check_delay(Settings& s) {
  if (s.delay.empty() && s.correction.empty() && s.local_steps == 0) return;
  DelayOptions options;
  try {
    if (!s.delay.empty()) options.parse_delay(s.delay);
    options.parse_correction(s.correction.empty() ? "soft" : s.correction);
    options.momentum = s.optimizer == "sgd" ? s.momentum.value_or(0.9) : s.beta1.value_or(0.9);
    if (s.local_steps > 0) options.local_steps = s.local_steps;
    options.check_every = s.check_every;
    options.check();
  } catch (const Error& error) {
    throw BadInput(std::string("--delay, --local-steps, --correction: ") + error.what());
  }
  if (s.exchange != "auto")
    throw BadInput("--exchange " + s.exchange +
                   " and --delay clash: delayed averaging has its own "
                   "exchange, in which all workers gather or sum; leave --exchange out");
  if (s.fuse_mb > 0) throw BadInput("--fuse-mb and --delay clash: a message is one already");
  if (s.optimizer != "sgd" && options.correction == Correction::published)
    throw BadInput(
        "--correction published works on gradients and needs --optimizer sgd; take ledger "
        "or pull with " +
        s.optimizer);
  s.delayed = options;
}

// After check_scheme(), which may have taken the scheme's momentum out.
void check_late(const Settings& s) {
  if (!s.delayed) return;
  try {
    check_fit(*s.delayed, s.config, s.optimizer != "sgd");
  } catch (const Error& error) {
    throw BadInput(std::string("--scheme, --delay: ") + error.what());
  }
}

void check_exchange(Settings& s) {
  try {
    s.meeting = ExchangeKind::parse(s.exchange);
    check_fit(s.meeting, s.config);
    if (s.meeting.servers > 256) fail("expected at most 256 servers, got ", s.meeting.servers);
  } catch (const Error& error) {
    throw BadInput(std::string("--exchange: ") + error.what());
  }
}

void check_fault(Settings& s) {
  if (s.nan_at.empty()) return;
  std::uint64_t step = 0;
  int rank = 0;
  if (std::sscanf(s.nan_at.c_str(), "%" SCNu64 ",%d", &step, &rank) != 2)
    throw BadInput("--nan-at: expected STEP,RANK, got '" + s.nan_at + "'");
  s.fault = {step, rank};
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Settings::identity(int world) const {
  std::vector<std::pair<std::string, std::string>> all = {
      {"workers", std::to_string(meeting.workers(world))},
      {"model", model},
      {"data", data},
      {"partition", shares.str()},
      {"scheme", config.str()},
      {"exchange", meeting.str()},
      {"optimizer", optimizer},
      {"seed", std::to_string(seed)},
      {"batch", std::to_string(batch)},
      {"accumulate", std::to_string(accumulate)},
      {"sequence", std::to_string(sequence)},
      {"precision", precision},
      {"bucket-mb", text_of(bucket_mb)}};
  if (delayed) {
    all.push_back({"delay", delayed->delay_str()});
    all.push_back({"local-steps", std::to_string(delayed->local_steps)});
    all.push_back({"correction", delayed->correction_str()});
  }
  return all;
}

void describe(CLI::App& verb, Settings& settings) {
  describe_step(verb, settings);
  add_length(verb, settings);
  add_optimizer(verb, settings);
  add_wire(verb, settings);
  add_delay(verb, settings);
  add_files(verb, settings);
}

void describe_step(CLI::App& verb, Settings& settings) {
  add_task(verb, settings);
  add_machine(verb, settings);
}

void check(Settings& s) {
  check_delay(s);
  check_scheme(s);
  check_late(s);
  check_optimizer(s);
  check_exchange(s);
  try {
    s.shares = Partition::parse(s.partition);
  } catch (const Error& error) {
    throw BadInput(std::string("--partition: ") + error.what());
  }
  try {
    s.rates = Schedule::parse(s.schedule);
    s.rates.peak = s.rate;
    s.rates.warmup = s.rate_warmup;
  } catch (const Error& error) {
    throw BadInput(std::string("--schedule: ") + error.what());
  }
  try {
    if (!s.link.empty()) s.emulated = Link::parse(s.link);
  } catch (const Error& error) {
    throw BadInput(std::string("--link: ") + error.what());
  }
  s.kind = s.engine == "mpi" ? Engine::mpi : s.engine == "nccl" ? Engine::nccl : Engine::gloo;
  s.cuda = s.device == "cuda";
  s.bf16 = s.precision == "bf16";
  if (s.save_every > 0 && s.save.empty()) throw BadInput("--save-every needs --save FILE");
  check_folder("--save", s.save);
  check_folder("--trace", s.trace);
  check_fault(s);
}

}  // namespace thinwire::train
