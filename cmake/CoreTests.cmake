# One executable test_<layer> for each folder tests/csrc/<layer>, its sub-folders
# included.

find_package(GTest REQUIRED)
include(GoogleTest)

set(test_root ${PROJECT_SOURCE_DIR}/tests/csrc)
file(GLOB_RECURSE test_sources CONFIGURE_DEPENDS RELATIVE ${test_root}
     ${test_root}/*.cc)
set(test_layers)
foreach(source ${test_sources})
  string(REGEX MATCH "^[^/]+" layer ${source})
  list(APPEND test_layers ${layer})
  list(APPEND sources_${layer} ${test_root}/${source})
endforeach()
list(REMOVE_DUPLICATES test_layers)

foreach(layer ${test_layers})
  add_executable(test_${layer} ${sources_${layer}})
  target_include_directories(test_${layer} PRIVATE ${test_root})
  target_link_libraries(test_${layer} PRIVATE
    tensoropt_core tensoropt_warnings GTest::gtest_main)
  gtest_discover_tests(test_${layer} TEST_PREFIX ${layer}. DISCOVERY_MODE PRE_TEST)
endforeach()
