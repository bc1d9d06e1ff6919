# Installation: one library, its headers, a CMake package and a pkg-config file.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/tersor)
install(TARGETS tersor tersor_headers EXPORT tersor-targets)
install(DIRECTORY include/tersor TYPE INCLUDE FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh")
install(EXPORT tersor-targets NAMESPACE tersor:: DESTINATION ${package_folder})

if(TERSOR_HAS_MPI)
  install(TARGETS tersor_mpi EXPORT tersor-mpi-targets)
  install(EXPORT tersor-mpi-targets NAMESPACE tersor:: DESTINATION ${package_folder})
endif()
if(TERSOR_HAS_TCP)
  install(TARGETS tersor_tcp EXPORT tersor-tcp-targets)
  install(EXPORT tersor-tcp-targets NAMESPACE tersor:: DESTINATION ${package_folder})
endif()
if(TERSOR_HAS_NCCL)
  install(TARGETS tersor_nccl EXPORT tersor-nccl-targets)
  install(EXPORT tersor-nccl-targets NAMESPACE tersor:: DESTINATION ${package_folder})
endif()

configure_package_config_file(
  cmake/tersor-config.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/tersor-config.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/tersor-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tersor-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/tersor-config-version.cmake
        DESTINATION ${package_folder})

# What a static library of ours needs beside itself; a shared one brings it along.
set(TERSOR_PC_LIBRARIES "")
if(NOT BUILD_SHARED_LIBS)
  set(TERSOR_PC_LIBRARIES "-lhwy -pthread")
  if(TERSOR_HAS_CUDA)
    string(APPEND TERSOR_PC_LIBRARIES " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
  endif()
endif()
file(RELATIVE_PATH TERSOR_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/tersor.pc.in tersor.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tersor.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
