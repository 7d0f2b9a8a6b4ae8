# The description that gpupool-jail is started with. Its folder has a limits.h, which is not for <>.
gp_fuzz_target(jail)
foreach(part description limits links peer_filter rtnetlink status)
  target_sources(fuzz_jail PRIVATE ${CMAKE_SOURCE_DIR}/server/jail/${part}.c)
endforeach()
target_include_directories(fuzz_jail PRIVATE ${CMAKE_SOURCE_DIR}/proto/wire)
target_compile_options(fuzz_jail PRIVATE -iquote ${CMAKE_SOURCE_DIR}/server/jail)
