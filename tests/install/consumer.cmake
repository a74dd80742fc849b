# consumer.cmake: installs to a fresh place, then configures, builds and runs the consumer, and
# checks its output.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)
set(prefix ${SCRATCH}/prefix)
set(work ${SCRATCH}/consumer)
file(REMOVE_RECURSE ${prefix} ${work} ${SCRATCH}/components)

# The consumer with one scheme; its output must match.
function(expect scheme pattern)
  run(${work}/consumer ${scheme})
  if(NOT output MATCHES "${pattern}")
    message(FATAL_ERROR "consumer ${scheme}: expected '${pattern}', got:\n${output}")
  endif()
  message(STATUS "${scheme}: ${output}")
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})

# Headers for users are there and need no others; internal ones are not installed.
file(GLOB_RECURSE headers RELATIVE ${prefix}/include ${prefix}/include/thinwire/*.h)
list(FILTER headers EXCLUDE REGEX "/(c10d|mpi)/")
set(includes)
foreach(header ${headers})
  string(APPEND includes "#include <${header}>\n")
endforeach()
foreach(expected thinwire.h compress/registry.h compress/coded.h kernels/limit.h)
  if(NOT includes MATCHES "<thinwire/${expected}>")
    message(FATAL_ERROR "not installed: thinwire/${expected}")
  endif()
endforeach()
set(internal "kernels/(dgc|norm)|memory/[a-z]*|delay/(ledger|published)|exchange/striped")
if(includes MATCHES "<thinwire/(${internal})\\.h>")
  message(FATAL_ERROR "internal, but installed: ${CMAKE_MATCH_0}")
endif()
file(WRITE ${SCRATCH}/headers.cc "${includes}")
run(${CXX} -std=c++20 -fsyntax-only -I${prefix}/include ${SCRATCH}/headers.cc)
# A scheme for thinwire.load_scheme() needs no others either: the wheel has the same headers.
run(${CXX} -std=c++20 -fsyntax-only -I${prefix}/include ${SOURCE}/examples/python/cyclic.cc)

run(${CMAKE_COMMAND} -S ${SOURCE}/examples/consumer -B ${work} -G ${GENERATOR}
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${prefix}
  "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
run(${CMAKE_COMMAND} --build ${work})
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/components -B ${SCRATCH}/components
  -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${prefix} -DENGINES=${ENGINES})
expect(dense "engines: local.*\naverage 2.5, 1/1 of the bytes")
expect(dgc:density=0.001,values=f32 "average 2.5, 1/[0-9][0-9]+ of the bytes")
expect(dgc:density=0.001 "average 2.[0-9]*, 1/[0-9][0-9][0-9]+ of the bytes")
