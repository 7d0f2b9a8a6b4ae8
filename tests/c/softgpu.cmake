# Tests of the soft GPU as a driver library: plain programs linked to it.
if(TARGET gpupool_softgpu)
  foreach(part context memory stream launch fault link texture)
    add_executable(test_softgpu_${part} ${CMAKE_CURRENT_LIST_DIR}/test_softgpu_${part}.c)
    target_include_directories(test_softgpu_${part} SYSTEM PRIVATE ${GPUPOOL_CUDA_INCLUDE})
    target_link_libraries(test_softgpu_${part} PRIVATE
      gp_options gpupool_softgpu Threads::Threads)
    add_test(NAME softgpu_${part} COMMAND test_softgpu_${part})
    set_tests_properties(softgpu_${part} PROPERTIES TIMEOUT 300)
  endforeach()
endif()
