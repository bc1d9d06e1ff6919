# Looks for the headers of NCCL and CUDA. Sets TERSOR_NCCL_INCLUDES to the include folders (empty if a header is
# missing). Sets TERSOR_HAS_NCCL to ON if tersor::nccl is built. The build does not need the NCCL library: programs find
# NCCL at run time.
set(TERSOR_HAS_NCCL OFF)
set(TERSOR_NCCL_INCLUDES "")
find_path(TERSOR_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
          PATHS /usr/local/cuda/include /opt/cuda/include)
find_path(TERSOR_CUDA_INCLUDE cuda_runtime_api.h
          HINTS ${CUDAToolkit_INCLUDE_DIRS} ${TERSOR_NCCL_INCLUDE}
          PATHS /usr/local/cuda/include /opt/cuda/include)
mark_as_advanced(TERSOR_NCCL_INCLUDE TERSOR_CUDA_INCLUDE)
if(TERSOR_NCCL_INCLUDE AND TERSOR_CUDA_INCLUDE)
  set(TERSOR_NCCL_INCLUDES ${TERSOR_NCCL_INCLUDE} ${TERSOR_CUDA_INCLUDE})
  list(REMOVE_DUPLICATES TERSOR_NCCL_INCLUDES)
endif()

# The oldest version that compiles. Tersor looks for functions of newer versions at run time.
set(nccl_oldest 2.14)
set(nccl_version 0)
if(TERSOR_NCCL_INCLUDE)
  file(STRINGS "${TERSOR_NCCL_INCLUDE}/nccl.h" nccl_numbers REGEX "#define NCCL_(MAJOR|MINOR) ")
  string(REGEX REPLACE "[^0-9;]" "" nccl_version "${nccl_numbers}")
  string(REPLACE ";" "." nccl_version "${nccl_version}")
endif()

if(nccl_version AND nccl_version VERSION_LESS nccl_oldest)
  set(TERSOR_NCCL_INCLUDES "")
  message(STATUS "Tersor: NCCL ${nccl_version} (${TERSOR_NCCL_INCLUDE}/nccl.h) is too old: install "
                 "${nccl_oldest} or later")
endif()

if(TERSOR_NCCL AND TERSOR_HAS_CUDA AND TERSOR_NCCL_INCLUDES)
  set(TERSOR_HAS_NCCL ON)
  message(STATUS "Tersor: NCCL on (${TERSOR_NCCL_INCLUDE}/nccl.h)")
elseif(TERSOR_NCCL AND NOT TERSOR_NCCL STREQUAL "AUTO")
  message(FATAL_ERROR "TERSOR_NCCL=${TERSOR_NCCL} needs CUDA (TERSOR_CUDA) and nccl.h of "
                      "${nccl_oldest} or newer (set TERSOR_NCCL_INCLUDE to its folder)")
else()
  message(STATUS "Tersor: NCCL off (TERSOR_NCCL=${TERSOR_NCCL})")
endif()
