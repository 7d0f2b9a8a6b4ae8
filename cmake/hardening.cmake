# What makes a mistake in C harder to use against the process that makes it. Every target links
# gp_options; tests/python/test_hardening.py reads the built files. The sanitizers do better and
# do without.
include(CheckCSourceCompiles)
include(CheckPIESupported)

check_pie_supported()
target_link_options(gp_options INTERFACE -Wl,-z,relro,-z,now,-z,noexecstack)

function(gp_option_if_known name)
  string(MAKE_C_IDENTIFIER "GP_HAS${name}" known)
  set(CMAKE_REQUIRED_FLAGS "-Werror ${name}")
  check_c_source_compiles("int main(void) { return 0; }" ${known})
  if(${known})
    target_compile_options(gp_options INTERFACE ${name})
  endif()
endfunction()

if(NOT GPUPOOL_SANITIZE AND NOT GPUPOOL_FUZZ)
  gp_option_if_known(-fstack-protector-strong)
  gp_option_if_known(-fstack-clash-protection)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    gp_option_if_known(-fcf-protection=full)
  endif()
  # It needs an optimiser; a C library and a compiler that know no level 3 warn of it.
  set(CMAKE_REQUIRED_FLAGS "-Werror -O2 -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
  check_c_source_compiles("#include <string.h>\nint main(void) { return 0; }" GP_FORTIFY_3)
  set(level $<IF:$<BOOL:${GP_FORTIFY_3}>,3,2>)
  target_compile_options(gp_options INTERFACE
    $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE>
    $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=${level}>)
  unset(CMAKE_REQUIRED_FLAGS)
endif()
