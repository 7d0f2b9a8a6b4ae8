# What asks who holds a lease's network for connections. Nothing is connected here.
gp_fuzz_target(loopback)
target_sources(fuzz_loopback PRIVATE ${CMAKE_SOURCE_DIR}/server/syscalls/loopback.c)
target_include_directories(fuzz_loopback PRIVATE ${CMAKE_SOURCE_DIR}/server/syscalls)
target_link_options(fuzz_loopback PRIVATE -Wl,--wrap=connect,--wrap=setitimer)
