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
