# Parts of the client and the worker on their own: no session, no GPU.
function(gp_unit_test name folder)
  list(TRANSFORM ARGN PREPEND ${CMAKE_SOURCE_DIR}/${folder}/)
  add_executable(test_${name} ${CMAKE_SOURCE_DIR}/tests/c/test_${name}.c ${ARGN})
  add_dependencies(test_${name} gp_generate)
  target_include_directories(test_${name} PRIVATE ${CMAKE_SOURCE_DIR}/${folder})
  target_include_directories(test_${name} SYSTEM PRIVATE ${GPUPOOL_CUDA_INCLUDE})
  target_compile_options(test_${name} PRIVATE -Wno-deprecated-declarations)
  target_link_libraries(test_${name} PRIVATE gp_options gp_wire gp_transport PkgConfig::CMOCKA
    Threads::Threads)
  add_test(NAME test_${name} COMMAND test_${name})
  set_tests_properties(test_${name} PROPERTIES TIMEOUT 60)
endfunction()

gp_unit_test(ranges client_lib ranges.c)
gp_unit_test(servers client_lib servers.c pci.c)
gp_unit_test(allocator server/worker allocator.c)
gp_unit_test(wait server/worker wait.c handles.c)
gp_unit_test(wait_after server/worker wait.c handles.c)
