# The whole client library against servers that lie.
add_executable(fuzz_session ${CMAKE_CURRENT_LIST_DIR}/fuzz_session.c ${GP_GEN}/fuzz_calls.c
  ${GP_GEN}/fuzz_answers.c ${GP_GEN}/fuzz_requests.c)
foreach(part apart calls client_calls draw draw_message fake_answer fake_server steps)
  target_sources(fuzz_session PRIVATE ${CMAKE_CURRENT_LIST_DIR}/${part}.c)
endforeach()
target_include_directories(fuzz_session PRIVATE ${CMAKE_CURRENT_LIST_DIR})
target_compile_options(fuzz_session PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE}
  -Wno-deprecated-declarations)
# Whatever its address says, a server is met here.
target_link_options(fuzz_session PRIVATE -fsanitize=fuzzer,${GPUPOOL_SANITIZE}
  -Wl,--wrap=gp_transport_find,--wrap=pthread_cond_wait,--wrap=pthread_cond_broadcast)
target_link_libraries(fuzz_session PRIVATE gpupool_cuda_objects gpc_headers gp_options gp_wire
  gp_transport Threads::Threads ${CMAKE_DL_LIBS})
