# Adds the suites of a program. ctest reads this file at start, after the output of tersor_add_suites.

# add_cases(<name> <case>…): a test of these cases in a single process.
function(add_cases name)
  list(JOIN ARGN ":" chosen)
  add_test("${name}" "${program}" "--gtest_filter=${chosen}")
  set(variables ${environment})
  if(DEFINED ENV{TERSOR_TEST_RESULTS})
    list(APPEND variables "GTEST_OUTPUT=xml:$ENV{TERSOR_TEST_RESULTS}/${name}.xml")
  endif()
  # A test is skipped if its output ends with the list of skipped cases. After a failure, a list of failed cases
  # follows.
  set_tests_properties("${name}" PROPERTIES ENVIRONMENT "${variables}" SKIP_REGULAR_EXPRESSION
                       "\\[  PASSED  \\] 0 tests\\.\n(\\[  SKIPPED \\][^\n]*\n)+$" ${properties})
endfunction()

# add_suite(<suite> <case>…): splits the cases into tests of at most `most_cases` cases.
function(add_suite suite)
  math(EXPR parts "(${ARGC} - 1 + ${most_cases} - 1) / ${most_cases}")
  set(name "${prefix}${suite}")
  foreach(part RANGE 1 ${parts})
    math(EXPR first "(${ARGC} - 1) * (${part} - 1) / ${parts}")
    math(EXPR length "(${ARGC} - 1) * ${part} / ${parts} - ${first}")
    list(SUBLIST ARGN ${first} ${length} cases)
    if(parts GREATER 1)
      set(name "${prefix}${suite}:${part}")
    endif()
    add_cases("${name}" ${cases})
  endforeach()
endfunction()

function(add_suites)
  set(result "not built")
  if(EXISTS "${program}")
    execute_process(COMMAND env ${environment} "${program}" --gtest_list_tests "--gtest_filter=${filter}"
                    OUTPUT_VARIABLE output ERROR_QUIET RESULT_VARIABLE result TIMEOUT 120)
  endif()
  if(NOT result EQUAL 0)  # no label: excluded when labels are selected
    add_test("${prefix}${program}" sh -c "echo 'cannot list the tests of ${program}: ${result}'; exit 1")
    return()
  endif()
  # Lines are '<suite>.  # …' and '  <case>  # …'. Comments are removed because they may contain CMake list
  # separators.
  string(REGEX REPLACE " *#[^\n]*" "" output "${output}")
  string(REPLACE "\n" ";" lines "${output}")
  set(suite "")
  set(cases "")
  foreach(line IN LISTS lines ITEMS "end.")
    if(line MATCHES "^  (.+)$")
      set(case "${suite}.${CMAKE_MATCH_1}")
      if(case MATCHES "$ENV{TERSOR_TEST_CASES}")
        list(APPEND cases "${case}")
      endif()
    elseif(line MATCHES "^([^ ]+)\\.$")
      if(cases)
        add_suite("${suite}" ${cases})
      endif()
      set(suite "${CMAKE_MATCH_1}")
      set(cases "")
    endif()
  endforeach()
endfunction()

add_suites()
