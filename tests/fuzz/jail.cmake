# The description that gpupool-jail is started with. Its folder has a limits.h, which is not for <>.
add_executable(fuzz_jail ${CMAKE_CURRENT_LIST_DIR}/fuzz_jail.c)
foreach(part description limits links peer_filter rtnetlink status)
  target_sources(fuzz_jail PRIVATE ${CMAKE_SOURCE_DIR}/server/jail/${part}.c)
endforeach()
target_include_directories(fuzz_jail PRIVATE ${CMAKE_SOURCE_DIR}/proto/wire)
target_compile_options(fuzz_jail PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE}
  -iquote ${CMAKE_SOURCE_DIR}/server/jail)
target_link_options(fuzz_jail PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE})
target_link_libraries(fuzz_jail PRIVATE gp_options)
