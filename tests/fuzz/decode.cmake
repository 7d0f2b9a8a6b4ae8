gp_fuzz_target(decode gp_wire)
