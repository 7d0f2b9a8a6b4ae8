# The whole worker with the soft GPU and the soft NCCL in it, and another worker that it is joined
# to.
if(TARGET gpupool_softgpu_objects)
  gp_fuzz_target(worker gpupool_worker_objects gpupool_softgpu_objects gpupool_softnccl_objects
    fuzz_parts)
  foreach(part driver_here fake_client fake_lent fake_peer kept_images)
    target_sources(fuzz_worker PRIVATE ${CMAKE_CURRENT_LIST_DIR}/${part}.c)
  endforeach()
  if(GPUPOOL_SANITIZE STREQUAL thread) # threads of the worker's run what stands beside it
    set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/fake_client.c
      ${CMAKE_CURRENT_LIST_DIR}/fake_lent.c ${CMAKE_CURRENT_LIST_DIR}/fake_peer.c PROPERTIES COMPILE_OPTIONS -fno-sanitize=fuzzer)
  endif()
  target_compile_definitions(fuzz_worker PRIVATE FUZZ_DRIVER="fuzz-driver"
    FUZZ_NCCL="fuzz-nccl")
  # The driver is opened by path: here it is this program (driver_here.c).
  target_link_options(fuzz_worker PRIVATE -rdynamic -Wl,--wrap=dlopen,--wrap=gp_transport_find)
endif()
