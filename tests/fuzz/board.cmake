# The page of a worker, in which it may write what it likes, as the arbiter reads it. Each look at a
# board is at all its places: here there are few. The clock, the pages and what wakes the arbiter are
# the target's own, and no system call is made. Whether addresses are aligned does not depend on
# an input here, but libFuzzer takes each such check for a comparison worth learning from: with them
# an execution takes half as long again.
gp_fuzz_target(board Threads::Threads)
get_target_property(sources gp_board SOURCES)
list(REMOVE_ITEM sources clock.c page.c seat.c seat_memory.c)
list(TRANSFORM sources PREPEND ${CMAKE_SOURCE_DIR}/server/arbiter/)
target_sources(fuzz_board PRIVATE ${sources})
set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS -fno-sanitize=alignment)
target_compile_definitions(fuzz_board PRIVATE GP_BOARD_TENANTS=3 GP_BOARD_MEMBERS=3)
target_include_directories(fuzz_board PRIVATE ${CMAKE_SOURCE_DIR}/server/arbiter
  ${CMAKE_SOURCE_DIR}/proto/wire)
target_compile_options(fuzz_board PRIVATE -fwrapv)
target_link_options(fuzz_board PRIVATE
  -Wl,--wrap=epoll_create1,--wrap=epoll_wait,--wrap=epoll_ctl,--wrap=timerfd_create
  -Wl,--wrap=timerfd_settime,--wrap=syscall,--wrap=close)
