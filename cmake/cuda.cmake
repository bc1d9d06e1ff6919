# Enables CUDA if nvcc works, disables CUDA otherwise, and prints the decision in one line. Sets TERSOR_HAS_CUDA to
# TRUE or FALSE.

# Default: machine code for A100 and H100, and PTX for later GPUs. CMake reads the variable when CUDA is enabled below.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90")
endif()

set(TERSOR_HAS_CUDA FALSE)
if(TERSOR_CUDA STREQUAL "AUTO")
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(TERSOR_NVCC nvcc PATHS /usr/local/cuda/bin /opt/cuda/bin)
    mark_as_advanced(TERSOR_NVCC)
    if(TERSOR_NVCC)
      set(CMAKE_CUDA_COMPILER ${TERSOR_NVCC} CACHE FILEPATH "CUDA compiler")
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER OR DEFINED ENV{CUDACXX})
    set(TERSOR_HAS_CUDA TRUE)
  else()
    message(STATUS "Tersor: CUDA off (no nvcc on PATH, in CUDACXX or in /usr/local/cuda/bin)")
  endif()
elseif(TERSOR_CUDA)
  set(TERSOR_HAS_CUDA TRUE)
else()
  message(STATUS "Tersor: CUDA off (TERSOR_CUDA=${TERSOR_CUDA})")
endif()

if(TERSOR_HAS_CUDA)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  if(TERSOR_PTX_DEVICE AND NOT CUDAToolkit_VERSION_MAJOR EQUAL 13)
    message(STATUS "Tersor: no tests on the simulated CUDA device: the device replaces the runtime of CUDA 13, "
                   "and CUDA ${CUDAToolkit_VERSION_MAJOR} was found")
    set(TERSOR_PTX_DEVICE OFF)
  endif()
  # By default, programs link the static CUDA runtime and run on machines with only a driver. With TERSOR_PTX_DEVICE,
  # tests/ptx_device replaces the shared runtime library and reads the PTX of the programs.
  set(TERSOR_CUDART CUDA::cudart_static)
  if(TERSOR_PTX_DEVICE)
    set(TERSOR_CUDART CUDA::cudart)
  endif()
  message(STATUS "Tersor: CUDA on (${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}, "
                 "architectures ${CMAKE_CUDA_ARCHITECTURES}, TERSOR_CUDA=${TERSOR_CUDA})")
endif()
