gp_fuzz_target(image gp_wire)
