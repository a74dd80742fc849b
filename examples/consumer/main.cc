// main.cc: the smallest program that uses an installed thinwire. docs/howto/cpp.md shows its core.
// SPDX-License-Identifier: Apache-2.0
#include <thinwire/thinwire.h>

#include <cstdio>
#include <string>
#include <vector>

#ifdef WITH_MPI
#include <thinwire/comm/mpi/mpi.h>
#endif

namespace {

#ifdef WITH_MPI
constexpr const char* engines = "local, mpi";
#else
constexpr const char* engines = "local";
#endif

// Small noise, and one large element that differs between the workers.
std::vector<float> my_gradient(int rank) {
  std::vector<float> gradient(100'000);
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] = 0.001f * static_cast<float>((i * 7919 + 13) % 1000) - 0.5f;
  }
  gradient[0] = static_cast<float>(rank + 1);
  return gradient;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string scheme = argc > 1 ? argv[1] : "dgc:density=0.001";
  std::printf("engines: %s\n", engines);
  // [readme] Four workers, here as threads of one process; MPI processes use make_mpi_group().
  thinwire::run_local(4, [&](thinwire::Group& group) {
    std::vector<float> gradient = my_gradient(group.rank());
    thinwire::Exchange exchange(group, {thinwire::Bucket::single(0, "weight", gradient.size())},
                                thinwire::Config::parse(scheme));  // "dgc:density=0.001"
    // In every step of the training:
    exchange.submit(0, gradient);  // as soon as backward has this bucket
    exchange.finish();             // it now holds the average, the same bits on every worker
    if (group.rank() == 0) {
      std::printf("average %g, 1/%.0f of the bytes\n", gradient[0], exchange.report().ratio());
    }
  });
  // [/readme]
  return 0;
}
