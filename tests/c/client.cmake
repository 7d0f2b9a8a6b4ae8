# The client's own objects, without the library around them: the test is the worker.
function(gp_client_test name)
  add_executable(${name} ${CMAKE_SOURCE_DIR}/tests/c/${name}.c)
  target_link_libraries(${name} PRIVATE gpupool_cuda_objects gpc_headers gp_options gp_wire
    gp_transport cmocka Threads::Threads ${CMAKE_DL_LIBS})
  target_compile_options(${name} PRIVATE -Wno-deprecated-declarations)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300)
endfunction()

gp_client_test(test_session)
gp_client_test(test_landing)
gp_client_test(test_lying_worker)
gp_client_test(test_lying_update)
gp_client_test(test_lying_nccl)
gp_client_test(test_copy_plan)
gp_client_test(test_movers)
gp_client_test(test_route)
gp_client_test(test_handle_walk)
gp_client_test(test_managed)
gp_client_test(test_mapped)
gp_client_test(test_maps)
gp_client_test(test_managed_variables)

# Parts of libcupti.so: no session, no library.
function(gp_cupti_test name)
  add_executable(${name} ${CMAKE_SOURCE_DIR}/tests/c/${name}.c ${ARGN})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/client_lib/cupti
    ${CMAKE_SOURCE_DIR}/client_lib/session ${CMAKE_SOURCE_DIR}/client_lib/process
    ${CMAKE_SOURCE_DIR}/proto/wire)
  target_include_directories(${name} SYSTEM PRIVATE ${GPUPOOL_CUDA_INCLUDE})
  target_link_libraries(${name} PRIVATE gp_options PkgConfig::CMOCKA Threads::Threads)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT 300)
endfunction()
# Records on their way into a profiler's buffers.
gp_cupti_test(test_cupti_queue ${CMAKE_SOURCE_DIR}/client_lib/cupti/queue.c)
# Callbacks of calls.
set(DRIVER_NUMBERS ${CMAKE_BINARY_DIR}/client_lib/cupti/gpc_driver_numbers.c)
set_source_files_properties(${DRIVER_NUMBERS} PROPERTIES GENERATED TRUE)
gp_cupti_test(test_cupti_callbacks ${CMAKE_SOURCE_DIR}/client_lib/cupti/callbacks.c
  ${DRIVER_NUMBERS})
add_dependencies(test_cupti_callbacks gp_generate_cupti)
