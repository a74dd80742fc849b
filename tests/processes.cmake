# Programs of several processes: compiled once, linked with each engine that is there
# (comm/ENGINE/engine.cc), started by launch.py.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(launch ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/launch.py)
set(launch_mpi ${launch} --mpirun ${MPIEXEC_EXECUTABLE})

set(engines)
function(add_engine engine library)
  add_library(testing_${engine} STATIC ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/comm/${engine}/engine.cc)
  target_link_libraries(testing_${engine} PUBLIC ${library} thinwire_flags)
  set(engines ${engines} ${engine} PARENT_SCOPE)
  if(NOT DEFINED launch_${engine})
    set(launch_${engine} ${launch} PARENT_SCOPE)
    target_sources(testing_${engine} PRIVATE ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/comm/c10d/run.cc)
  endif()
endfunction()

if(TARGET thinwire_mpi)
  add_engine(mpi thinwire::mpi)
endif()
if(TARGET thinwire_c10d)
  add_engine(c10d thinwire::c10d)
  add_engine(staged thinwire::c10d)
endif()
if(THINWIRE_NCCL)
  execute_process(COMMAND nvidia-smi -L OUTPUT_VARIABLE gpus ERROR_QUIET)
  if(gpus MATCHES "GPU 0")
    add_engine(nccl thinwire::c10d)
  endif()
endif()

# add_process_program(name source): the programs name_ENGINE.
function(add_process_program name source)
  add_library(${name} OBJECT ${source})
  target_link_libraries(${name} PUBLIC thinwire_testing)
  foreach(engine ${engines})
    add_executable(${name}_${engine})
    target_link_libraries(${name}_${engine} PRIVATE ${name} testing_${engine})
  endforeach()
endfunction()

# add_process_test(name engine ranks program): all ranks must end well. Ranks spend much of their
# time waiting for each other, so that two such tests at a time, on the few cores of a usual
# machine, end sooner than one after the other. On a machine with other load they take many times as
# long: the limits are for ranks that hang.
function(add_process_test name engine ranks program)
  add_test(NAME ${name} COMMAND ${launch_${engine}} --ranks ${ranks} --limit 280
    $<TARGET_FILE:${program}>)
  set_tests_properties(${name} PROPERTIES TIMEOUT 300 PROCESSORS 2 COST ${ranks})
endfunction()

# add_failure_test(name engine ranks culprit expected program scenario): every rank but the culprit
# must end with a message that matches; under mpirun, which ends all with the first, one of them.
# Most of the time all sleep: started first, beside others.
function(add_failure_test name engine ranks culprit expected program scenario)
  set(name ${name}.${scenario}.${ranks}.${culprit})
  add_test(NAME ${name} COMMAND ${launch_${engine}} --ranks ${ranks} --limit 60 --culprit ${culprit}
    --expect ${expected}
    $<TARGET_FILE:${program}> ${scenario} ${culprit})
  set_tests_properties(${name} PROPERTIES TIMEOUT 90 COST 10)
endfunction()
