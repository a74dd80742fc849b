# Tests over Gloo. launch.py starts the ranks, as torchrun would.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(launch ${Python3_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/launch.py)

# add_c10d_test(name ranks command...): the command on so many ranks. ctest -j counts every rank as a processor.
function(add_c10d_test name ranks)
  add_test(NAME ${name} COMMAND ${launch} --ranks ${ranks} --limit 110 ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT 120 PROCESSORS ${ranks})
endfunction()
