# Parts of the client and the worker on their own: no session, no GPU.
#
# gp_unit_test(NAME PARTS SOURCE...): test_NAME.c, with what it needs of the library PARTS.
function(gp_unit_test name parts)
  add_executable(test_${name} ${CMAKE_SOURCE_DIR}/tests/c/test_${name}.c ${ARGN})
  if(parts STREQUAL gpw_parts)
    target_sources(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/c/worker_stubs.c)
  endif()
  add_dependencies(test_${name} gp_generate)
  target_include_directories(test_${name} SYSTEM PRIVATE ${GPUPOOL_CUDA_INCLUDE})
  target_compile_options(test_${name} PRIVATE -Wno-deprecated-declarations)
  target_link_libraries(test_${name} PRIVATE ${parts} gp_options gp_wire gp_transport
    PkgConfig::CMOCKA Threads::Threads)
  add_test(NAME test_${name} COMMAND test_${name})
  set_tests_properties(test_${name} PROPERTIES TIMEOUT 300)
endfunction()

foreach(name ranges ask servers visible)
  gp_unit_test(${name} gpc_parts)
endforeach()
foreach(name allocator allocator_kept allocator_shared shareable mapped_array pool freed wait event
    event_page completion held topology image_bytes image_look image_prints budget quota growth gate gate_stands copy staging handles graph_edges graph_frees
    hidden_nodes peer_wire peer_seal ranks unique_id)
  gp_unit_test(${name} gpw_parts)
endforeach()
foreach(name wait_after wait_written)
  gp_unit_test(${name} gpw_parts ${CMAKE_CURRENT_LIST_DIR}/streams_driver.c)
endforeach()
target_link_libraries(test_quota PRIVATE gp_board)
# An NVML that says what the test wants.
add_library(held_nvml SHARED ${CMAKE_SOURCE_DIR}/tests/c/held_nvml.c)
target_link_libraries(held_nvml PRIVATE gp_options)
set_target_properties(held_nvml PROPERTIES PREFIX "" OUTPUT_NAME libnvidia-ml.so SUFFIX ".1"
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/held C_VISIBILITY_PRESET default)
target_link_options(test_held PRIVATE -Wl,--disable-new-dtags,-rpath,${CMAKE_CURRENT_BINARY_DIR}/held)
target_link_libraries(test_held PRIVATE ${CMAKE_DL_LIBS})
add_dependencies(test_held held_nvml)
foreach(name gate gate_stands)
  target_include_directories(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/server/arbiter)
endforeach()
gp_unit_test(gang_gates gpw_parts ${CMAKE_CURRENT_LIST_DIR}/simulated_cards.c
  ${CMAKE_CURRENT_LIST_DIR}/simulated_worker.c)
target_link_libraries(test_gang_gates PRIVATE gp_board)

gp_unit_test(arena gpupool_worker_objects)
gp_unit_test(control gpupool_worker_objects ${CMAKE_CURRENT_LIST_DIR}/accept_lacks.c)

# The whole worker over a driver that does nothing: what it adds to a message.
gp_unit_test(message_cost gpupool_worker_objects ${CMAKE_CURRENT_LIST_DIR}/null_driver.c
  ${CMAKE_CURRENT_LIST_DIR}/null_gpu.c)
add_executable(bench_messages EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/bench/messages.c
  ${CMAKE_CURRENT_LIST_DIR}/null_driver.c ${CMAKE_CURRENT_LIST_DIR}/null_gpu.c)
target_include_directories(bench_messages PRIVATE ${CMAKE_CURRENT_LIST_DIR})
target_include_directories(bench_messages SYSTEM PRIVATE ${GPUPOOL_CUDA_INCLUDE})
target_link_libraries(bench_messages PRIVATE gpupool_worker_objects gp_options)

# What transports carry, of two processes: also for tests/gpu/rdma.py.
add_executable(bench_transports EXCLUDE_FROM_ALL ${CMAKE_SOURCE_DIR}/bench/transports.c)
target_link_libraries(bench_transports PRIVATE gp_transport)
add_dependencies(bench_transports gpupool_zmq gpupool_tcp gpupool_ucx)

foreach(name operations span image_name array_extent copy_batch activity_record memory_file look)
  gp_unit_test(${name} gp_wire)
endforeach()
if(TARGET sg_parts)
  gp_unit_test(softgpu_address sg_parts)
endif()
