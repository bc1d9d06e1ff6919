# Installs the libraries, the headers, the CMake package and the pkg-config files.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/tersor)
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)
# tersor_install_library(<export> <component> <target>…): installs shared libraries in the component, and all other
# files in the component `development`.
function(tersor_install_library export component)
  install(
    TARGETS ${ARGN} EXPORT ${export}-targets
    LIBRARY COMPONENT ${component} NAMELINK_COMPONENT development
    ARCHIVE COMPONENT development)
  install(EXPORT ${export}-targets NAMESPACE tersor:: DESTINATION ${package_folder})
endfunction()

tersor_install_library(tersor runtime tersor tersor_headers)
install(DIRECTORY include/tersor TYPE INCLUDE FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh")
if(TERSOR_HAS_MPI)
  tersor_install_library(tersor-mpi runtime_mpi tersor_mpi)
endif()
if(TERSOR_HAS_TCP)
  tersor_install_library(tersor-tcp runtime tersor_tcp)
endif()
if(TERSOR_HAS_NCCL)
  tersor_install_library(tersor-nccl runtime tersor_nccl)
endif()

configure_package_config_file(
  cmake/tersor-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/tersor-config.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/tersor-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tersor-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/tersor-config-version.cmake
        DESTINATION ${package_folder})

# tersor_install_pc(NAME LIBRARY REQUIRES CFLAGS LIBS): installs NAME.pc for pkg-config.
function(tersor_install_pc TERSOR_PC_NAME TERSOR_PC_LIBRARY TERSOR_PC_REQUIRES TERSOR_PC_CFLAGS TERSOR_PC_LIBS)
  file(RELATIVE_PATH TERSOR_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
  configure_file(cmake/tersor.pc.in ${TERSOR_PC_NAME}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${TERSOR_PC_NAME}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endfunction()

# With a static library, the user's command line must name the dependencies. A shared library loads the dependencies.
set(core_libraries "")
if(NOT BUILD_SHARED_LIBS)
  set(core_libraries "-lhwy -pthread")
  if(TERSOR_HAS_CUDA)
    string(APPEND core_libraries " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
  endif()
endif()
tersor_install_pc(tersor tersor "" "" "${core_libraries}")
if(TERSOR_HAS_MPI)
  list(TRANSFORM MPI_CXX_INCLUDE_DIRS PREPEND "-I" OUTPUT_VARIABLE mpi_flags)
  list(JOIN mpi_flags " " mpi_flags)
  list(JOIN MPI_CXX_LIBRARIES " " mpi_libraries)
  tersor_install_pc(tersor-mpi tersor_mpi tersor "${mpi_flags}" "${mpi_libraries}")
endif()
if(TERSOR_HAS_TCP)
  set(sodium "")
  if(NOT BUILD_SHARED_LIBS)
    cmake_path(GET TERSOR_SODIUM FILENAME sodium)
    set(sodium "-l:${sodium} -Wl,--exclude-libs,libsodium.a")
  endif()
  tersor_install_pc(tersor-tcp tersor_tcp tersor "" "${sodium}")
endif()
if(TERSOR_HAS_NCCL)
  list(TRANSFORM TERSOR_NCCL_INCLUDES PREPEND "-I" OUTPUT_VARIABLE nccl_flags)
  list(JOIN nccl_flags " " nccl_flags)
  tersor_install_pc(tersor-nccl tersor_nccl tersor "${nccl_flags}" "-ldl")
endif()
