# CUDA, where nvcc is found. Included before torch is looked for, because torch's package changes
# the flags of the language.
set(THINWIRE_CUDA_FOUND FALSE)
if(THINWIRE_CUDA OR (NOT DEFINED THINWIRE_CUDA AND PROJECT_IS_TOP_LEVEL))
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(THINWIRE_CUDA_FOUND TRUE)
  else()
    message(STATUS "nvcc not found: no CUDA kernels")
  endif()
endif()
option(THINWIRE_CUDA "Build the CUDA kernels (needs nvcc 12 or newer)" ${THINWIRE_CUDA_FOUND})
set(given_architectures ${CMAKE_CUDA_ARCHITECTURES})  # read here, so that no build warns of it
if(NOT THINWIRE_CUDA)
  return()
endif()
if(NOT THINWIRE_CUDA_FOUND)
  message(FATAL_ERROR "THINWIRE_CUDA is on, but nvcc was not found; add its folder to PATH, "
    "set -DCMAKE_CUDA_COMPILER=/path/to/nvcc, or pass -DTHINWIRE_CUDA=OFF")
endif()

# Without a choice (CMAKE_CUDA_ARCHITECTURES, or CUDAARCHS in the environment): machine code for
# every generation since Ampere that the toolkit knows, and PTX of the last for those to come.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND "$ENV{CUDAARCHS}" STREQUAL "")
  set(all_architectures TRUE)
  set(CMAKE_CUDA_ARCHITECTURES 90)  # or CMake would put the compiler's own default into the cache
endif()
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.0)
  message(FATAL_ERROR "the CUDA kernels need nvcc 12 or newer for C++20, found "
    "${CMAKE_CUDA_COMPILER_VERSION}; pass -DTHINWIRE_CUDA=OFF to build without them")
endif()
if(all_architectures)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100-real 120)
  endif()
endif()
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake before 3.26 does not know it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION}, architectures: ${CMAKE_CUDA_ARCHITECTURES}")

find_shared(CUDA::cudart_static CUDAToolkit REQUIRED QUIET)
foreach(target CUDA::toolkit CUDA::cudart_static_deps)
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES IMPORTED_GLOBAL TRUE)
  endif()
endforeach()
