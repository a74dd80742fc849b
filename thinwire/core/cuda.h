// cuda.h: what host and CUDA code share. A rule for one element is written once, marked
// THINWIRE_HD, and used by the plain reference and by the kernel, so both have the same bits.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef __CUDACC__
#define THINWIRE_HD __host__ __device__
#else
#define THINWIRE_HD
#endif
