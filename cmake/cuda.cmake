# Switches CUDA on where nvcc works and off elsewhere, and says so in one line.
# Afterwards TERSOR_HAS_CUDA is TRUE or FALSE.

# Machine code for A100 and H100, PTX for what comes after. To be set before the language is enabled.
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
    message(STATUS "Tersor: no tests on the device that interprets PTX: it stands in for the runtime "
                   "of CUDA 13, this one is of ${CUDAToolkit_VERSION_MAJOR}")
    set(TERSOR_PTX_DEVICE OFF)
  endif()
  # Static, so that programs run where only a driver is; but what runs on the device of tests/ptx_device
  # has a runtime library that can be exchanged, and PTX that can be read.
  set(TERSOR_CUDART CUDA::cudart_static)
  if(TERSOR_PTX_DEVICE)
    set(TERSOR_CUDART CUDA::cudart)
  endif()
  message(STATUS "Tersor: CUDA on (${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}, "
                 "architectures ${CMAKE_CUDA_ARCHITECTURES}, TERSOR_CUDA=${TERSOR_CUDA})")
endif()
