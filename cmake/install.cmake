# What `cmake --install` puts where. pool/gpupool_common/paths.py knows the same layout,
# and the wheel is this tree beside the Python package. No links, no sonames as
# extra files: a wheel can hold neither.
#
# Each target is optional: a build without the soft GPU still makes a wheel.

# The plug-ins and the soft GPU find the libraries they need beside the wheel's own
# (auditwheel writes that path) or in the system; never through the build folder.
function(gp_install_library target folder)
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES INSTALL_RPATH "")
    install(TARGETS ${target} LIBRARY DESTINATION ${folder} COMPONENT gpupool)
  endif()
endfunction()

gp_install_library(gpupool_cuda lib)
gp_install_library(gpupool_zmq lib/plugins)
gp_install_library(gpupool_tcp lib/plugins)
gp_install_library(gpupool_ucx lib/plugins)
gp_install_library(gpupool_softgpu lib/driver)
gp_install_library(gpupool_softnccl lib/driver)

foreach(program gpupool_worker gpupool_arbiter gpupool_jail gpupool_learn)
  if(TARGET ${program})
    set_target_properties(${program} PROPERTIES INSTALL_RPATH "")
    install(TARGETS ${program} RUNTIME DESTINATION libexec COMPONENT gpupool)
  endif()
endforeach()

# Of `gpupool-server install-service`, and of the manager's.
install(
  FILES ${CMAKE_CURRENT_SOURCE_DIR}/server/systemd/gpupool-server.service
        ${CMAKE_CURRENT_SOURCE_DIR}/pool/systemd/gpupool-manager.service
  DESTINATION share/systemd
  COMPONENT gpupool)
