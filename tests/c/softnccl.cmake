# Tests of the small NCCL on the soft GPU: ranks as threads and as processes.
if(TARGET gpupool_softnccl)
  foreach(part faults groups hosts liars values wire)
    add_executable(test_softnccl_${part} ${CMAKE_CURRENT_LIST_DIR}/test_softnccl_${part}.c
      ${CMAKE_SOURCE_DIR}/server/softnccl/wire.c) # to say what ranks say
    target_include_directories(test_softnccl_${part} PRIVATE ${CMAKE_SOURCE_DIR}/server/softnccl
      ${CMAKE_SOURCE_DIR}/proto/wire)
    target_include_directories(test_softnccl_${part} SYSTEM PRIVATE ${GPUPOOL_CUDA_INCLUDE})
    target_link_libraries(test_softnccl_${part} PRIVATE
      gp_options gpupool_softgpu gpupool_softnccl Threads::Threads)
    add_test(NAME softnccl_${part} COMMAND test_softnccl_${part})
    set_tests_properties(softnccl_${part} PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77
      ENVIRONMENT NCCL_SOCKET_IFNAME=lo)
  endforeach()
endif()
