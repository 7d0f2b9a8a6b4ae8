# The transports' parsers of what a peer wrote, under libFuzzer.
foreach(name zmq_batch shm_ring)
  gp_fuzz_target(${name} gp_transport)
endforeach()
gp_fuzz_target(zmq_address gpupool_zmq_parts gp_transport ${GPUPOOL_ZMQ_LIBRARY})
# What is sent to a worker beside the rings: datagrams with descriptors.
gp_fuzz_target(shm_socket gp_transport)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS SSL Crypto)
# Our own TCP: what a stream brings, and what is said at the door.
foreach(name tcp_frames tcp_greet tcp_seal tcp_stripe)
  gp_fuzz_target(${name} gpupool_tcp_parts gp_transport OpenSSL::SSL OpenSSL::Crypto)
endforeach()
# Who comes, comes by no network; a thread that would send nothing is not made; and a channel's
# largest piece of memory is the same for all.
target_link_options(fuzz_tcp_greet PRIVATE -Wl,--wrap=accept4,--wrap=tcp_keeper_start
  -Wl,--wrap=tcp_keeper_stop,--wrap=aligned_alloc,--wrap=free)
gp_fuzz_target(ucx_wire gpupool_ucx_parts gp_transport)
