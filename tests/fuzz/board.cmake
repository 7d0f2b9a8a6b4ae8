# The page of a worker, in which it may write what it likes, as the arbiter reads it. Each look at a
# board is at all its places: here there are few. The clock, the pages and what wakes the arbiter are
# the target's own.
gp_fuzz_target(board Threads::Threads)
get_target_property(sources gp_board SOURCES)
list(REMOVE_ITEM sources clock.c page.c seat.c seat_memory.c)
foreach(source ${sources})
  target_sources(fuzz_board PRIVATE ${CMAKE_SOURCE_DIR}/server/arbiter/${source})
endforeach()
target_compile_definitions(fuzz_board PRIVATE GP_BOARD_TENANTS=3 GP_BOARD_MEMBERS=3)
target_include_directories(fuzz_board PRIVATE ${CMAKE_SOURCE_DIR}/server/arbiter
  ${CMAKE_SOURCE_DIR}/proto/wire)
target_compile_options(fuzz_board PRIVATE -fwrapv)
target_link_options(fuzz_board PRIVATE
  -Wl,--wrap=epoll_wait,--wrap=epoll_ctl,--wrap=timerfd_settime)
