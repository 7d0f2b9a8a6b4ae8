# The soft GPU alone: what a driver's caller may do.
if(TARGET gpupool_softgpu_objects)
  add_executable(fuzz_softgpu ${CMAKE_CURRENT_LIST_DIR}/fuzz_softgpu.c ${GP_GEN}/fuzz_calls.c)
  foreach(part apart calls draw draw_message steps)
    target_sources(fuzz_softgpu PRIVATE ${CMAKE_CURRENT_LIST_DIR}/${part}.c)
  endforeach()
  target_sources(fuzz_softgpu PRIVATE ${GP_GEN}/fuzz_requests.c)
  target_include_directories(fuzz_softgpu PRIVATE ${CMAKE_CURRENT_LIST_DIR})
  target_compile_options(fuzz_softgpu PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE}
    -Wno-deprecated-declarations)
  target_link_options(fuzz_softgpu PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
  target_link_libraries(fuzz_softgpu PRIVATE gpupool_softgpu_objects gp_wire)
endif()
