# What a pitched copy touches, under libFuzzer.
gp_fuzz_target(span gp_wire)
