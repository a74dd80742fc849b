# consumer.cmake: install to a fresh place, configure, build and run the consumer, check what it prints.
set(prefix ${SCRATCH}/prefix)
set(work ${SCRATCH}/consumer)
file(REMOVE_RECURSE ${prefix} ${work})

function(run)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed (${result}): ${ARGN}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

# The consumer with one scheme; its output must match.
function(expect scheme pattern)
  run(${work}/consumer ${scheme})
  if(NOT output MATCHES "${pattern}")
    message(FATAL_ERROR "consumer ${scheme}: expected '${pattern}', got:\n${output}")
  endif()
  message(STATUS "${scheme}: ${output}")
endfunction()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${SOURCE}/examples/consumer -B ${work} -G ${GENERATOR} -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${prefix} "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror")
run(${CMAKE_COMMAND} --build ${work})
expect(dense "engines: local.*\naverage 2.5, 1/1 of the bytes")
expect(dgc:density=0.001,values=f32 "average 2.5, 1/[0-9][0-9]+ of the bytes")
expect(dgc:density=0.001 "average 2.[0-9]*, 1/[0-9][0-9][0-9]+ of the bytes")
