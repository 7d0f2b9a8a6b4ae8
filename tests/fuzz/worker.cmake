# The whole worker with the soft GPU in it, and another worker that it is joined to.
if(TARGET gpupool_softgpu_objects)
  add_executable(fuzz_worker ${CMAKE_CURRENT_LIST_DIR}/fuzz_worker.c ${GP_GEN}/fuzz_requests.c)
  foreach(part apart draw draw_message driver_here fake_client fake_peer steps)
    target_sources(fuzz_worker PRIVATE ${CMAKE_CURRENT_LIST_DIR}/${part}.c)
  endforeach()
  if(GPUPOOL_SANITIZE STREQUAL thread) # threads of the worker's run what stands beside it
    set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/fake_client.c
      ${CMAKE_CURRENT_LIST_DIR}/fake_peer.c PROPERTIES COMPILE_OPTIONS -fno-sanitize=fuzzer)
  endif()
  target_include_directories(fuzz_worker PRIVATE ${CMAKE_CURRENT_LIST_DIR})
  target_compile_options(fuzz_worker PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE}
    -Wno-deprecated-declarations)
  target_compile_definitions(fuzz_worker PRIVATE FUZZ_DRIVER="fuzz-driver")
  # The driver is opened by path: here it is this program (driver_here.c).
  target_link_options(fuzz_worker PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE} -rdynamic
    -Wl,--wrap=dlopen,--wrap=gp_transport_find)
  target_link_libraries(fuzz_worker PRIVATE gpupool_worker_objects gpupool_softgpu_objects)
endif()
