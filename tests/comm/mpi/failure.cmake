# failure.cmake: runs COMMAND (a list), which must fail within LIMIT seconds, and say what EXPECTED (a regular
# expression) matches. No rank may end well. cmake -DCOMMAND=... -DEXPECTED=... -DLIMIT=... -P failure.cmake
execute_process(COMMAND ${COMMAND} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output TIMEOUT ${LIMIT})
message("${output}")
if(NOT result MATCHES "^[0-9]+$" OR result EQUAL 0)
  message(FATAL_ERROR "expected an exit status other than 0 within ${LIMIT} s, got: ${result}")
endif()
if(output MATCHES "ended well")
  message(FATAL_ERROR "a rank ended well")
endif()
if(NOT output MATCHES "${EXPECTED}")
  message(FATAL_ERROR "expected to read: ${EXPECTED}")
endif()
