# Who runs on a soft GPU that several processes have.
add_executable(test_softgpu_slices ${CMAKE_CURRENT_LIST_DIR}/test_softgpu_slices.c
  ${CMAKE_SOURCE_DIR}/server/softgpu/runlist.c)
target_include_directories(test_softgpu_slices PRIVATE ${CMAKE_SOURCE_DIR}/server/softgpu)
target_link_libraries(test_softgpu_slices PRIVATE gp_options Threads::Threads
  ${GPUPOOL_CMOCKA_LIBRARY})
add_test(NAME softgpu_slices COMMAND test_softgpu_slices)
set_tests_properties(softgpu_slices PROPERTIES TIMEOUT 120)
