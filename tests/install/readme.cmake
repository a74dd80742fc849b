# readme.cmake: the code that docs/howto/cpp.md shows is the code that examples/consumer compiles.
file(READ ${SOURCE}/docs/howto/cpp.md page)
file(READ ${SOURCE}/examples/consumer/main.cc program)
string(REGEX MATCH "  // \\[readme\\] (.*)  // \\[/readme\\]" found "${program}")
if(NOT found)
  message(FATAL_ERROR "examples/consumer/main.cc has no [readme] ... [/readme]")
endif()
# In the program the lines are indented by two.
string(REGEX REPLACE "\n  " "\n" snippet "// ${CMAKE_MATCH_1}")
string(FIND "${page}" "${snippet}" at)
if(at EQUAL -1)
  message(FATAL_ERROR
    "docs/howto/cpp.md does not hold the lines of examples/consumer/main.cc:\n${snippet}")
endif()
