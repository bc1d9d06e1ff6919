# Defines the compile flags of all Tersor targets, the functions that add targets, and the library `tersor`.

# Flags and include folders of all Tersor targets. CMake never exports tersor_build. The bytes of a payload depend on
# -ffp-contract=off and -fmad=false: the code uses fused multiply-add only if the format requires fused multiply-add.
add_library(tersor_build INTERFACE)
target_include_directories(tersor_build INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(
  tersor_build
  INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off;-Wall;-Wextra>
            # Designated initialisers deliberately omit members with a default.
            $<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers>
            # GCC 12 reports false overlaps in std::string (GCC bug 105651).
            $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>
            # CMake 3.25 silently ignores CMAKE_CUDA_STANDARD 20.
            $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;-fmad=false;--expt-relaxed-constexpr;--diag-suppress=554;-Xcompiler=-ffp-contract=off,-Wall,-Wextra>
)
if(TERSOR_FEWER_KERNELS)
  target_compile_definitions(tersor_build INTERFACE TERSOR_FEWER_KERNELS=1)
endif()
if(TERSOR_WERROR)
  target_compile_options(tersor_build INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>
                                                $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
endif()
if(TERSOR_FUZZ)
  target_compile_options(tersor_build INTERFACE -fsanitize=fuzzer-no-link,address,undefined
                                                -fno-sanitize-recover=all)
  target_link_options(tersor_build INTERFACE -fsanitize=address,undefined)
endif()
if(TERSOR_HAS_CUDA)
  target_compile_definitions(tersor_build INTERFACE TERSOR_HAS_CUDA=1)
  target_link_libraries(tersor_build INTERFACE ${TERSOR_CUDART})
  if(TERSOR_PTX_DEVICE)
    target_compile_options(tersor_build INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:--no-compress>)
  endif()
endif()

# tersor_add_layer(<target> <sources>…): adds an object library of a layer.
function(tersor_add_layer target)
  add_library(${target} OBJECT ${ARGN})
  target_link_libraries(${target} PRIVATE tersor_build tersor_headers Threads::Threads)
  set_property(GLOBAL APPEND PROPERTY TERSOR_LAYERS ${target})
endfunction()

# tersor_unity_build(<target> [<excluded sources>…]): with TERSOR_UNITY_BUILD, compiles eight sources of the target as
# one, in half of the time. Excluded sources are compiled separately. A name in an unnamed namespace must then be unique
# in the target. TERSOR_UNITY_BUILD may also be the number of sources. pip builds with 16, because headers take half of
# the compile time of eight sources.
function(tersor_unity_build target)
  if(TERSOR_UNITY_BUILD GREATER 1)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${TERSOR_UNITY_BUILD})
  else()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ${TERSOR_UNITY_BUILD} UNITY_BUILD_BATCH_SIZE 8)
  endif()
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# tersor_precompile(<target>): in a build with tests, precompiles the headers of most sources once, for all libraries
# that call this function. A build without tests precompiles nothing, and therefore detects missing includes.
function(tersor_precompile target)
  if(NOT TERSOR_BUILD_TESTS)
    return()
  endif()
  # GCC 12 warns about the code of GCC's own headers, because precompilation hides the origin of the code.
  target_compile_options(
    ${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds;-Wno-stringop-overflow>)
  get_property(first GLOBAL PROPERTY TERSOR_PRECOMPILED)
  if(first)
    set_target_properties(${target} PROPERTIES PRECOMPILE_HEADERS_REUSE_FROM ${first})
  else()
    target_precompile_headers(${target} PRIVATE ${TERSOR_COMMON_HEADERS})
    set_property(GLOBAL PROPERTY TERSOR_PRECOMPILED ${target})
  endif()
endfunction()
set(TERSOR_COMMON_HEADERS <algorithm> <atomic> <chrono> <condition_variable> <deque> <functional> <map> <memory>
                          <mutex> <optional> <ranges> <span> <string> <thread> <vector>)

# Before 1.0, each minor version may change the ABI.
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(TERSOR_ABI_VERSION 0.${PROJECT_VERSION_MINOR})
else()
  set(TERSOR_ABI_VERSION ${PROJECT_VERSION_MAJOR})
endif()

# A shared library exports the names of the public headers, and the names of exports.h for tersor-bench.
if(BUILD_SHARED_LIBS)
  file(GLOB_RECURSE public RELATIVE ${PROJECT_SOURCE_DIR}/include CONFIGURE_DEPENDS include/tersor/*.h)
  list(REMOVE_ITEM public tersor/mpi.h tersor/nccl.h)
  list(TRANSFORM public REPLACE "(.+)" "#include <\\1>\n")
  string(CONCAT TERSOR_PUBLIC_HEADERS ${public})
  configure_file(cmake/exports.h.in exports.h @ONLY)
  configure_file(cmake/exports.map.in exports.map @ONLY)
  set(options -fvisibility=hidden "SHELL:-include ${PROJECT_BINARY_DIR}/exports.h")
  target_compile_options(tersor_build INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${options}>")
  list(TRANSFORM options REPLACE "^-f" "-Xcompiler=-f")
  target_compile_options(tersor_build INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${options}>")
endif()

# tersor_version_library(<target>): sets the SONAME of a shared library and the version nodes of the symbols.
function(tersor_version_library target)
  set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${TERSOR_ABI_VERSION})
  if(BUILD_SHARED_LIBS)
    target_link_options(${target} PRIVATE LINKER:--version-script=${PROJECT_BINARY_DIR}/exports.map)
    set_target_properties(${target} PROPERTIES LINK_DEPENDS ${PROJECT_BINARY_DIR}/exports.map)
  endif()
endfunction()

# tersor_compose(): adds the library for users, from the objects of all layers.
function(tersor_compose)
  get_property(objects GLOBAL PROPERTY TERSOR_LAYERS)
  list(TRANSFORM objects REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>")
  add_library(tersor ${objects})
  add_library(tersor::tersor ALIAS tersor)
  set_target_properties(tersor PROPERTIES LINKER_LANGUAGE CXX)
  tersor_version_library(tersor)
  target_link_libraries(tersor PUBLIC tersor_headers Threads::Threads PRIVATE hwy::hwy)
  if(TERSOR_HAS_CUDA)
    target_link_libraries(tersor PRIVATE $<BUILD_INTERFACE:${TERSOR_CUDART}>
                                         $<INSTALL_INTERFACE:CUDA::cudart_static>)
  endif()
endfunction()
