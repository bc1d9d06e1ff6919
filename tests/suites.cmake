# Adds test folders as programs, and programs as ctest tests.

# tersor_share_headers(<program or library> [<owner>]): reuses the precompiled headers of another target.
function(tersor_share_headers target)
  if(ARGC EQUAL 1)
    set(ARGN tersor_test_headers)
  endif()
  set_target_properties(${target} PROPERTIES PRECOMPILE_HEADERS_REUSE_FROM ${ARGN})
endfunction()

# tersor_add_suites(<program> <label> [PREFIX <prefix>] [FILTER <filter>] [CASES <number>] [TIMEOUT <seconds>]
#                   [ENVIRONMENT <VARIABLE=value>…] [PROPERTIES <property> <value>…]):
# Adds each suite of the program as a ctest test called <prefix><suite>. A test runs at most CASES cases in a
# single process; larger suites become several tests. Two environment variables of ctest apply:
# TERSOR_TEST_CASES, a regular expression of the cases to run, and TERSOR_TEST_RESULTS, a folder for the results
# of each test as <test name>.xml.
function(tersor_add_suites program label)
  tersor_share_headers(${program})
  cmake_parse_arguments(arg "" "PREFIX;FILTER;CASES;TIMEOUT" "ENVIRONMENT;PROPERTIES" ${ARGN})
  set(filter "-*RealTime*") # these tests measure wall-clock time; scripts/check-times runs them
  if(arg_FILTER)
    set(filter "${arg_FILTER}")
  endif()
  set(cases 50)
  if(arg_CASES)
    set(cases ${arg_CASES})
  endif()
  set(timeout 600)
  if(arg_TIMEOUT)
    set(timeout ${arg_TIMEOUT})
  endif()
  string(MAKE_C_IDENTIFIER "${program}_${label}_${arg_PREFIX}" list)
  set(list ${CMAKE_CURRENT_BINARY_DIR}/${list}.cmake)
  # ctest reads this list at start, after the program was built.
  file(GENERATE OUTPUT ${list} CONTENT
"set(program [[$<TARGET_FILE:${program}>]])
set(prefix [[${arg_PREFIX}]])
set(filter [[${filter}]])
set(most_cases ${cases})
set(environment [[${arg_ENVIRONMENT}]])
set(properties [[LABELS;${label};TIMEOUT;${timeout};${arg_PROPERTIES}]])
include([[${PROJECT_SOURCE_DIR}/tests/list_suites.cmake]])
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${list})
endfunction()

# tersor_add_test_program(<folder>): builds the folder's tests as the program tersor_<folder>_test. The caller
# may add to the program.
function(tersor_add_test_program folder)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*.cc)
  add_executable(tersor_${folder}_test ${sources})
  target_link_libraries(tersor_${folder}_test PRIVATE tersor_test_support)
  tersor_unity_build(tersor_${folder}_test)
  tersor_add_suites(tersor_${folder}_test ${folder})
endfunction()

# tersor_add_shared_suites(<folder> <regular expression>): the caller's tests. Tests matching the expression
# belong to the folder's program alone. The others are compiled once as the object library
# tersor_<folder>_suites and linked into other programs, too.
function(tersor_add_shared_suites folder own)
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  file(GLOB suites CONFIGURE_DEPENDS *_test.cc)
  list(FILTER suites EXCLUDE REGEX "/(${own})_test\\.cc$")
  list(REMOVE_ITEM sources ${suites})
  set(program tersor_${folder}_test)
  add_library(tersor_${folder}_suites OBJECT ${suites})
  tersor_share_headers(tersor_${folder}_suites tersor_test_support_objects)
  add_executable(${program} ${sources} $<TARGET_OBJECTS:tersor_${folder}_suites>)
  foreach(target tersor_${folder}_suites ${program})
    target_link_libraries(${target} PRIVATE tersor_test_support)
    tersor_unity_build(${target})
  endforeach()
  tersor_add_suites(${program} ${folder})
endfunction()

# tersor_add_scripts(<folder> [<label>] [<VARIABLE=value>…]): adds the folder's *_test.py. Scripts starting
# ranks with mpirun count as two processors, because these ranks poll while waiting.
function(tersor_add_scripts folder)
  set(label ${folder})
  if(ARGC GREATER 1)
    list(POP_FRONT ARGN label)
  endif()
  file(GLOB scripts CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*_test.py)
  foreach(script IN LISTS scripts)
    cmake_path(GET script STEM name)
    add_test(NAME ${folder}.${name} COMMAND ${TERSOR_PYTHON} -B ${script})
    set(processors 1)
    if(name MATCHES "^mpi")
      set(processors 2)
    endif()
    set_tests_properties(${folder}.${name} PROPERTIES LABELS ${label} PROCESSORS ${processors} TIMEOUT 600
                                                      SKIP_REGULAR_EXPRESSION "OK \\(skipped="
                                                      ENVIRONMENT "${ARGN}")
  endforeach()
endfunction()

# tersor_test_on_ptx_device(<program> <name> <label> [FILTER <filter>] [SETTINGS <VARIABLE=value>…]): adds the
# program's suites on the PTX interpreter as <name>.<suite>.
function(tersor_test_on_ptx_device program name label)
  cmake_parse_arguments(arg "" FILTER SETTINGS ${ARGN})
  add_dependencies(${program} tersor_ptx_device)
  if(TERSOR_NCCL_INCLUDES)
    add_dependencies(${program} tersor_ptx_nccl)
  endif()
  # One thread per process, because ctest keeps the cores busy. In strict mode, every finding fails the test.
  tersor_add_suites(
    ${program} ${label} PREFIX ${name}. FILTER "${arg_FILTER}" CASES 20 TIMEOUT 1800
    ENVIRONMENT LD_LIBRARY_PATH=${TERSOR_PTX_DEVICE_FOLDER} PTX_DEVICE_THREADS=1
                PTX_DEVICE_STRICT=1 ${arg_SETTINGS})
endfunction()
