# What another worker sends, under libFuzzer.
gp_fuzz_target(peer gpw_parts gp_wire gp_transport)
