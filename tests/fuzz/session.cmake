# The whole client library against servers that lie.
gp_fuzz_target(session gpupool_cuda_objects gpc_headers fuzz_parts gp_wire gp_transport
  Threads::Threads ${CMAKE_DL_LIBS})
target_sources(fuzz_session PRIVATE ${GP_GEN}/fuzz_answers.c)
foreach(part client_calls fake_answer fake_page fake_server)
  target_sources(fuzz_session PRIVATE ${CMAKE_CURRENT_LIST_DIR}/${part}.c)
endforeach()
# Whatever its address says, a server is met here.
target_link_options(fuzz_session PRIVATE
  -Wl,--wrap=gp_transport_find,--wrap=pthread_cond_wait,--wrap=pthread_cond_broadcast)
