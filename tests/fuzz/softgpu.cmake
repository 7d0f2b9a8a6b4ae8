# The soft GPU alone: what a driver's caller may do.
if(TARGET gpupool_softgpu_objects)
  gp_fuzz_target(softgpu gpupool_softgpu_objects fuzz_parts)
endif()
