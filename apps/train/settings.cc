// settings.cc: parses and checks flags, with an error text for each unusable one.
// SPDX-License-Identifier: Apache-2.0
#include "apps/train/settings.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "apps/flags.h"
#include "apps/verb.h"
#include "thinwire/compress/registry.h"
#include "thinwire/core/error.h"
#include "thinwire/delay/fit.h"

namespace thinwire::train {
namespace {

using apps::above_zero;
using apps::BadInput;
using apps::number_in;
using apps::one_of;
using apps::whole_from;
using apps::whole_in;
using apps::zero_or_more;

constexpr int most_virtual = 1024;

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

void add_task(CLI::App& verb, Settings& s) {
  verb.add_option("--model", s.model, "Network to train; see the list below")
      ->type_name("NAME")
      ->capture_default_str();
  verb.add_option("--data", s.data, "Data to learn from; see the list below")
      ->type_name("KIND[:WHERE]")
      ->capture_default_str();
  verb.add_option("--partition", s.partition,
                  "Partition of the data: iid (all workers share all examples),\n"
                  "contiguous (each has a part of the file), or dirichlet:ALPHA\n"
                  "(classes are spread unevenly)")
      ->type_name("KIND")
      ->capture_default_str();
  verb.add_option("--workers", s.workers, "Worker processes to start on this machine; default 1")
      ->type_name("N")
      ->check(whole_in(1, 256));
  verb.add_option("--scheme", s.scheme, "Compression of gradients; see `thinwire schemes`")
      ->type_name("NAME[:KEY=VALUE,...]")
      ->capture_default_str();
  verb.add_option("--exchange", s.exchange,
                  "Route of the gradients: auto, split (split-reduce), or server:S\n"
                  "(through S additional server processes)")
      ->type_name("KIND")
      ->capture_default_str();
  verb.add_option("--batch", s.batch, "Examples per worker and backward pass")
      ->type_name("N")
      ->check(whole_in(1, 1 << 20))
      ->capture_default_str();
  verb.add_option("--accumulate", s.accumulate, "Backward passes per step")
      ->type_name("N")
      ->check(whole_in(1, 1 << 20))
      ->capture_default_str();
  verb.add_option("--sequence", s.sequence, "Tokens per example of a language model")
      ->type_name("N")
      ->check(whole_in(1, 1 << 20))
      ->capture_default_str();
  verb.add_option("--precision", s.precision,
                  "Precision of forward and backward. The weights stay f32")
      ->type_name("f32|bf16")
      ->check(one_of({"f32", "bf16"}))
      ->capture_default_str();
  verb.add_option("--seed", s.seed, "Seed of weights, batches and dropout")
      ->type_name("N")
      ->check(whole_from(0))
      ->capture_default_str();
}

void add_length(CLI::App& verb, Settings& s) {
  auto* steps = verb.add_option("--steps", s.steps, "Steps of the whole training")
                    ->type_name("N")
                    ->check(whole_from(1));
  verb.add_option("--epochs", s.epochs, "Length of the training in passes over the data")
      ->type_name("X")
      ->check(above_zero())
      ->excludes(steps)
      ->capture_default_str();
  verb.add_option("--stop", s.stop, "Step after which to stop. Schedules still follow --steps")
      ->type_name("N")
      ->check(whole_from(1));
}

void add_optimizer(CLI::App& verb, Settings& s) {
  verb.add_option("--optimizer", s.optimizer, "Optimizer of the weights")
      ->type_name("sgd|adam|adamw")
      ->check(one_of({"sgd", "adam", "adamw"}))
      ->capture_default_str();
  verb.add_option("--lr", s.rate, "Peak learning rate; default 0.1, for adam and adamw 0.001")
      ->type_name("X")
      ->check(above_zero());
  verb.add_option("--momentum", s.momentum,
                  "Momentum factor in [0, 1), of SGD or of a scheme that keeps\n"
                  "momentum; default 0.9")
      ->type_name("X")
      ->check(number_in(0, 0.999999));
  verb.add_flag("--nesterov", s.nesterov, "Use Nesterov's form of momentum");
  verb.add_option("--beta1", s.beta1, "Decay of adam's mean of gradients, in [0, 1); default 0.9")
      ->type_name("X")
      ->check(number_in(0, 0.999999));
  verb.add_option("--beta2", s.beta2, "Decay of adam's mean of squares, in [0, 1); default 0.999")
      ->type_name("X")
      ->check(number_in(0, 0.999999));
  verb.add_option("--epsilon", s.epsilon,
                  "Number that adam adds to the root of the mean square; default 1e-8")
      ->type_name("X")
      ->check(number_in(1e-30, 1e30));  // 0 would divide 0 by 0 if a gradient was always 0
  verb.add_option("--weight-decay", s.decay,
                  "Weight of the L2 term; with adamw, decay of the weights themselves")
      ->type_name("X")
      ->check(zero_or_more())
      ->capture_default_str();
  verb.add_option("--clip", s.clip, "Norm to clip the gradient to; 0 turns clipping off")
      ->type_name("X")
      ->check(zero_or_more())
      ->capture_default_str();
  verb.add_option("--schedule", s.schedule,
                  "Schedule of the learning rate: constant, linear, cosine, or\n"
                  "step:EPOCH,EPOCH,...")
      ->type_name("KIND")
      ->capture_default_str();
  verb.add_option("--lr-warmup", s.rate_warmup, "Steps over which the learning rate rises")
      ->type_name("N")
      ->check(whole_from(0))
      ->capture_default_str();
}

void add_machine(CLI::App& verb, Settings& s) {
  verb.add_option("--bucket-mb", s.bucket_mb, "Megabytes of gradients per bucket")
      ->type_name("X")
      ->check(number_in(0.001, 4096))
      ->capture_default_str();
  verb.add_option("--fuse-mb", s.fuse_mb,
                  "Megabytes below which all-reduces are fused; 0 fuses nothing")
      ->type_name("X")
      ->check(number_in(0, 4096))
      ->capture_default_str();
  verb.add_option("--timeout", s.timeout, "Seconds after which a silent worker ends the job")
      ->type_name("X")
      ->check(number_in(0.1, 86400))
      ->capture_default_str();
  verb.add_option("--device", s.device, "Device of the model. Workers share the available GPUs")
      ->type_name("cpu|cuda")
      ->check(one_of({"cpu", "cuda"}))
      ->capture_default_str();
  verb.add_option("--threads", s.threads,
                  "Threads per worker; default 1 when workers share a machine")
      ->type_name("N")
      ->check(whole_in(1, 1024));
}

void add_wire(CLI::App& verb, Settings& s) {
  verb.add_option("--link", s.link,
                  "Link to emulate, by bandwidth and latency. Further parts:\n"
                  "jitter=5ms, outage=LENGTH/EVERY (such as 2s/30s) and seed=N")
      ->type_name("100mbit,1ms");
  verb.add_option("--engine", s.engine,
                  "Transport; default gloo. mpi needs mpirun, nccl needs one GPU\n"
                  "per worker")
      ->type_name("gloo|mpi|nccl")
      ->check(one_of({"gloo", "mpi", "nccl"}));
  verb.add_option("--virtual", s.virtual_workers,
                  "Train what this many workers would train, in one process. It estimates\n"
                  "the time of a --link")
      ->type_name("N")
      ->check(whole_in(1, most_virtual));
}

void add_delay(CLI::App& verb, Settings& s) {
  verb.add_option("--delay", s.delay,
                  "Delayed averaging: steps that a message may be in flight, or\n"
                  "auto:MOST")
      ->type_name("D");
  verb.add_option("--local-steps", s.local_steps, "Delayed averaging: steps per message; default 1")
      ->type_name("K")
      ->check(whole_in(1, 100000));
  verb.add_option("--correction", s.correction,
                  "Delayed averaging: how a worker takes in what arrives: soft,\n"
                  "ledger, published, pull or none")
      ->type_name("NAME[:KEY=VALUE,...]");
}

void add_files(CLI::App& verb, Settings& s) {
  verb.add_option("--save", s.save,
                  "Checkpoint to write at the end and on Ctrl-C, as FILE.rankR for\n"
                  "each rank")
      ->type_name("FILE")
      ->check(apps::check_output_path);
  verb.add_option("--save-every", s.save_every, "Steps between further checkpoints")
      ->type_name("N")
      ->check(whole_from(1));
  verb.add_option("--resume", s.resume, "Checkpoint to resume from")->type_name("FILE");
  verb.add_option("--check-every", s.check_every,
                  "Steps between comparisons of the replicas; 0 compares only at\n"
                  "the end")
      ->type_name("N")
      ->check(whole_from(0))
      ->capture_default_str();
  verb.add_option("--eval-every", s.eval_every,
                  "Steps between evaluations; the end is always evaluated")
      ->type_name("N")
      ->check(whole_from(0));
  verb.add_option("--report-every", s.report_every, "Steps per row; default about 20 rows in total")
      ->type_name("N")
      ->check(whole_from(0));
  verb.add_option("--trace", s.trace, "File for rank 0's first 100 steps, in Chrome's trace format")
      ->type_name("FILE")
      ->check(apps::check_output_path);
  // For tests: a NaN in one rank's gradient; on the CPU what a GPU would do. The empty group hides
  // them from --help.
  verb.add_option("--nan-at", s.nan_at, "STEP,RANK")->group("");
  verb.add_flag("--streams", s.streams)->group("");
}

bool has_option(const Scheme& scheme, const std::string& name) {
  return std::any_of(scheme.options.begin(), scheme.options.end(),
                     [&](const Option& option) { return option.name == name; });
}

// Passes a flag on to a scheme that has the same option. If both are given they must agree;
// otherwise one of them would silently have no effect.
void hand_over(Config& config, const std::string& flag, const std::string& option,
               const std::string& value) {
  const auto [place, fresh] = config.options.try_emplace(option, value);
  if (fresh || place->second == value) return;
  throw BadInput(flag + " " + value + " contradicts " + option + "=" + place->second +
                 " of scheme " + config.scheme + "; give only one of them");
}

void check_scheme(Settings& s) {
  s.config = apps::parse_scheme(s.scheme);
  const Scheme& scheme = find_scheme(s.config.scheme);
  if (s.delayed) {
    // The updates that are sent already include the optimizer's momentum and clipping.
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

// Runs after check_scheme(). "With Adam" in docs/schemes.md explains why these are rejected.
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
    throw BadInput(flag + " takes no --momentum and no --nesterov; use --beta1");
  if (!keeps_momentum(s.config) || s.delayed) return;
  if (s.config.scheme == "signum")
    throw BadInput(flag +
                   ": scheme signum yields the sign of a vote, not a gradient, so Adam has " +
                   "nothing to scale; use --optimizer sgd, or another scheme");
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
  if (s.fuse_mb > 0) throw BadInput("--fuse-mb and --delay clash: a message is fused already");
  if (s.optimizer != "sgd" && options.correction == Correction::published)
    throw BadInput(
        "--correction published works on gradients and needs --optimizer sgd; use ledger "
        "or pull with " +
        s.optimizer);
  s.delayed = options;
}

// Runs after check_scheme(), which may have removed the scheme's momentum.
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

// Refuses what would change nothing, or tell a time that nobody has measured.
void check_virtual(const Settings& s) {
  if (s.virtual_workers == 0) return;
  const std::string flag = "--virtual " + std::to_string(s.virtual_workers);
  if (s.workers > 0) {
    throw BadInput(flag + " and --workers " + std::to_string(s.workers) +
                   " clash: workers are either virtual or processes; give only one of them");
  }
  if (!s.engine.empty()) {
    throw BadInput(flag + " and --engine " + s.engine +
                   " clash: virtual workers share their memory; leave --engine out");
  }
  if (s.streams)
    throw BadInput(flag + " and --streams clash: virtual workers exchange by the host");
  if (!s.trace.empty()) {
    throw BadInput(flag + " and --trace clash: virtual workers take turns, so nothing overlaps; " +
                   "use --workers");
  }
  if (s.delayed && s.emulated) {
    throw BadInput(flag + " and --link clash under delayed averaging: what is hidden behind " +
                   "computing is measured, not estimated; use --workers, or leave --link out");
  }
  if (s.delayed && s.delayed->measure) {
    throw BadInput(flag + " and --delay " + s.delay + " clash: between virtual workers there is " +
                   "no latency to measure; give --delay a number, or use --workers");
  }
  if (s.emulated && !s.emulated->steady()) {
    throw BadInput(flag + ": the time of a link with jitter or outages cannot be estimated; use " +
                   "--workers, or a --link without them");
  }
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
  check_fault(s);
  check_virtual(s);
}

}  // namespace thinwire::train
