# The packages that are used where the machine has them. docs/dependencies.md explains what each is
# for and what happens without it.

# Finds a package and makes its target visible everywhere, because a parent project that links
# thinwire::core links it too.
macro(find_shared target)
  set(visible FALSE)
  if(TARGET ${target})
    set(visible TRUE)
  endif()
  find_package(${ARGN})
  if(TARGET ${target} AND NOT visible)
    set_target_properties(${target} PROPERTIES IMPORTED_GLOBAL TRUE)
  endif()
endmacro()

find_shared(Threads::Threads Threads REQUIRED)

include(${CMAKE_CURRENT_LIST_DIR}/cuda.cmake)

find_shared(hwy::hwy hwy CONFIG QUIET)
if(NOT hwy_FOUND)
  message(STATUS "Highway not found: kernels run as their plain references")
endif()

find_path(ISAL_INCLUDE_DIR isa-l/crc.h)
find_library(ISAL_LIBRARY isal)
if(NOT (ISAL_INCLUDE_DIR AND ISAL_LIBRARY))
  message(STATUS "ISA-L not found: CRC-32C runs as its plain reference")
endif()

if(THINWIRE_MPI)
  find_shared(MPI::MPI_CXX MPI COMPONENTS CXX QUIET)
  if(NOT MPI_CXX_FOUND)
    message(STATUS "MPI not found: no MPI engine")
  endif()
endif()

# torch comes from the project's virtual environment (scripts/setup), else from the machine's
# python3; -DTorch_DIR=... overrides both. Python runs isolated (-I), because pip hides the
# environment's own packages behind PYTHONPATH when it builds the Python package.
if(THINWIRE_TORCH)
  if(Python_EXECUTABLE)
    set(torch_python ${Python_EXECUTABLE})
  endif()
  find_program(torch_python NAMES python python3
    PATHS ${PROJECT_SOURCE_DIR}/.venv/bin NO_DEFAULT_PATH)
  find_program(torch_python NAMES python3)
  if(NOT Torch_DIR)
    execute_process(
      COMMAND ${torch_python} -I -c "import torch; print(torch.utils.cmake_prefix_path)"
      OUTPUT_VARIABLE torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND CMAKE_PREFIX_PATH ${torch_prefix})
  endif()
  # A torch with CUDA sets flags and architectures for all CUDA code; ours stay as they are.
  set(own_architectures ${CMAKE_CUDA_ARCHITECTURES})
  set(own_cuda_flags "${CMAKE_CUDA_FLAGS}")
  # Without a list torch asks the machine's GPU, with a program that CMake before 3.26 cannot build
  # as C++20. Only torch's own flags depend on it.
  if(NOT TORCH_CUDA_ARCH_LIST AND "$ENV{TORCH_CUDA_ARCH_LIST}" STREQUAL "")
    set(TORCH_CUDA_ARCH_LIST 9.0)
  endif()
  # It looks for the toolkit beside the nvcc in PATH, which may be a link or a script.
  if(CUDAToolkit_BIN_DIR AND NOT CUDA_TOOLKIT_ROOT_DIR)
    get_filename_component(CUDA_TOOLKIT_ROOT_DIR ${CUDAToolkit_BIN_DIR} DIRECTORY)
  endif()
  find_package(Torch QUIET)
  set(CMAKE_CUDA_ARCHITECTURES ${own_architectures})
  set(CMAKE_CUDA_FLAGS "${own_cuda_flags}")
  find_path(GLOO_INCLUDE_DIR gloo/config.h)
  if(NOT Torch_FOUND)
    message(STATUS "torch not found: no c10d engine, no thinwire train")
  elseif(NOT GLOO_INCLUDE_DIR)
    message(STATUS "gloo headers not found: no Gloo groups from C++, no thinwire train")
  endif()
  # A torch with CUDA brings NCCL. Its header comes from the NCCL package, which pip puts beside
  # torch.
  if(TARGET torch_cuda)
    find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${TORCH_INSTALL_PREFIX}/../nvidia/nccl/include)
  endif()
  if(TARGET torch_cuda AND NOT NCCL_INCLUDE_DIR)
    message(STATUS "nccl.h not found: no NCCL groups")
  endif()
  if(THINWIRE_PYTHON AND Torch_FOUND)
    set(Python_EXECUTABLE ${torch_python})
    find_package(Python COMPONENTS Interpreter Development.Module QUIET)
    if(NOT Python_Development.Module_FOUND)
      message(STATUS "Python's headers not found: no Python package")
    endif()
  endif()
endif()
