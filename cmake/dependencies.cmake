# What is found on the machine. docs/dependencies.md says why each part and what happens without it.
find_package(Threads REQUIRED)

find_package(hwy CONFIG QUIET)
if(NOT hwy_FOUND)
  message(STATUS "Highway not found: kernels run as their plain references")
endif()

find_path(ISAL_INCLUDE_DIR isa-l/crc.h)
find_library(ISAL_LIBRARY isal)
if(NOT (ISAL_INCLUDE_DIR AND ISAL_LIBRARY))
  message(STATUS "ISA-L not found: CRC-32C runs as its plain reference")
endif()

if(THINWIRE_MPI)
  find_package(MPI COMPONENTS CXX QUIET)
  if(NOT MPI_CXX_FOUND)
    message(STATUS "MPI not found: no MPI engine")
  endif()
endif()

# torch comes from the project's virtual environment (scripts/setup), else from the python3 of the machine; -DTorch_DIR=... overrides.
if(THINWIRE_TORCH)
  if(NOT Torch_DIR)
    find_program(torch_python NAMES python python3 PATHS ${PROJECT_SOURCE_DIR}/.venv/bin NO_DEFAULT_PATH)
    find_program(torch_python NAMES python3)
    execute_process(COMMAND ${torch_python} -c "import torch; print(torch.utils.cmake_prefix_path)"
      OUTPUT_VARIABLE torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    list(APPEND CMAKE_PREFIX_PATH ${torch_prefix})
  endif()
  find_package(Torch QUIET)
  find_path(GLOO_INCLUDE_DIR gloo/config.h)
  if(NOT Torch_FOUND)
    message(STATUS "torch not found: no c10d engine, no thinwire train")
  elseif(NOT GLOO_INCLUDE_DIR)
    message(STATUS "gloo headers not found: no Gloo groups from C++, no thinwire train")
  endif()
endif()
