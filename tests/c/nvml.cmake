# What the server says of its devices, read without a server.
if(TARGET gpc_nvml_answer)
  add_executable(test_nvml_answer ${CMAKE_CURRENT_LIST_DIR}/test_nvml_answer.c)
  target_link_libraries(test_nvml_answer PRIVATE gpc_nvml_answer PkgConfig::CMOCKA)
  add_test(NAME test_nvml_answer COMMAND test_nvml_answer)
endif()
