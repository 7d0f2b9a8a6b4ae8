# What ranks of the soft NCCL say to each other, under libFuzzer.
if(TARGET gpupool_softnccl_objects)
  gp_fuzz_target(softnccl)
  target_sources(fuzz_softnccl PRIVATE ${CMAKE_SOURCE_DIR}/server/softnccl/wire.c)
  target_include_directories(fuzz_softnccl PRIVATE ${CMAKE_SOURCE_DIR}/server/softnccl
    ${CMAKE_SOURCE_DIR}/proto/wire)
  target_include_directories(fuzz_softnccl SYSTEM PRIVATE ${GPUPOOL_CUDA_INCLUDE})
endif()
