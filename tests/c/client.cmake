# The client's own objects, without the library around them: the test is the worker.
function(gp_client_test name)
  add_executable(${name} ${CMAKE_SOURCE_DIR}/tests/c/${name}.c)
  target_link_libraries(${name} PRIVATE gpupool_cuda_objects gpc_headers gp_options gp_wire
    gp_transport cmocka Threads::Threads ${CMAKE_DL_LIBS})
  target_compile_options(${name} PRIVATE -Wno-deprecated-declarations)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 180)
endfunction()

gp_client_test(test_session)
gp_client_test(test_lying_worker)
gp_client_test(test_lying_update)
gp_client_test(test_lying_nccl)
gp_client_test(test_copy_plan)
gp_client_test(test_route)
gp_client_test(test_handle_walk)
gp_client_test(test_managed)
gp_client_test(test_mapped)
gp_client_test(test_managed_variables)

# Records on their way into a profiler's buffers: no session, no library.
add_executable(test_cupti_queue ${CMAKE_SOURCE_DIR}/tests/c/test_cupti_queue.c
  ${CMAKE_SOURCE_DIR}/client_lib/cupti/queue.c)
target_include_directories(test_cupti_queue PRIVATE ${CMAKE_SOURCE_DIR}/client_lib/cupti
  ${CMAKE_SOURCE_DIR}/proto/wire)
target_include_directories(test_cupti_queue SYSTEM PRIVATE ${GPUPOOL_CUDA_INCLUDE})
target_link_libraries(test_cupti_queue PRIVATE gp_options PkgConfig::CMOCKA)
add_test(NAME test_cupti_queue COMMAND test_cupti_queue)
set_tests_properties(test_cupti_queue PROPERTIES TIMEOUT 60)
