# Who runs on a soft GPU that several processes have.
foreach(part slices turns policies)
  add_executable(test_softgpu_${part} ${CMAKE_CURRENT_LIST_DIR}/test_softgpu_${part}.c
    ${CMAKE_CURRENT_LIST_DIR}/simulated_device.c)
  target_link_libraries(test_softgpu_${part} PRIVATE sg_parts gp_options gp_board Threads::Threads
    ${GPUPOOL_CMOCKA_LIBRARY})
  add_test(NAME softgpu_${part} COMMAND test_softgpu_${part})
  set_tests_properties(softgpu_${part} PROPERTIES TIMEOUT 300)
endforeach()
