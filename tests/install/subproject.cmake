# subproject.cmake: inside another project thinwire brings only its library, and needs no
# GoogleTest. Configures subproject/, checks its targets, and compiles the program. It does not
# build the library again.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)
set(work ${SCRATCH}/subproject)
file(REMOVE_RECURSE ${work})

set(absent)
foreach(package GTest benchmark CLI11 nlohmann_json Torch MPI Python)
  list(APPEND absent -DCMAKE_DISABLE_FIND_PACKAGE_${package}=ON)
endforeach()
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/subproject -B ${work} -G Ninja
  -DCMAKE_CXX_COMPILER=${CXX} -DTHINWIRE_SOURCE=${SOURCE} ${absent})
run(${CMAKE_COMMAND} --build ${work} --target help)
if(NOT output MATCHES "libthinwire_core\\.a")
  message(FATAL_ERROR "no thinwire_core among the targets:\n${output}")
endif()
if(output MATCHES "(kernels_tests|thinwire_command|thinwire_python|thinwire_mpi|_bench)")
  message(FATAL_ERROR "${CMAKE_MATCH_1} is built inside another project")
endif()
set(object CMakeFiles/consumer.dir/${SOURCE}/examples/consumer/main.cc.o)
run(${CMAKE_COMMAND} --build ${work} --target ${object})
run(${CMAKE_COMMAND} --install ${work} --prefix ${work}/prefix)
if(EXISTS ${work}/prefix/include)
  message(FATAL_ERROR "a project's installation would carry thinwire's headers")
endif()
