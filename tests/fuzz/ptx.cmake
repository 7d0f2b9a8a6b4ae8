if(TARGET sg_ptx)
  gp_fuzz_target(ptx sg_ptx)
endif()
