# The two libraries inside the Python package:
#   tensoropt_ops  operators over c10d groups (TORCH_LIBRARY)
#   _C             bindings of the core (pybind11); free of torch
#
# The headers of torch and pybind11 take longer to compile than a file of ours,
# and a precompiled header of torch longer to load: several files are one unit. Each
# file of operators has a namespace of its own, so any of them may share a unit.

add_custom_target(python_libs)
set(package_rpath "$ORIGIN;$ORIGIN/../torch/lib")

file(GLOB ops_sources CONFIGURE_DEPENDS ${CSRC}/runtime/*.cc)
if(ops_sources)
  add_library(tensoropt_ops SHARED ${ops_sources})
  target_link_libraries(tensoropt_ops PRIVATE tensoropt_core torch_libs
                                              tensoropt_warnings)
  set_target_properties(tensoropt_ops PROPERTIES
    INSTALL_RPATH "${package_rpath}"
    UNITY_BUILD ${TENSOROPT_UNITY} UNITY_BUILD_BATCH_SIZE 5)
  add_dependencies(python_libs tensoropt_ops)
  install(TARGETS tensoropt_ops LIBRARY DESTINATION tensoropt_torch)
endif()

file(GLOB bindings_sources CONFIGURE_DEPENDS ${CSRC}/bindings/*.cc)
if(bindings_sources)
  python_add_library(_C MODULE WITH_SOABI ${bindings_sources})
  target_include_directories(_C SYSTEM PRIVATE ${TENSOROPT_TORCH_DIR}/include)
  target_link_libraries(_C PRIVATE tensoropt_core tensoropt_warnings)
  set_target_properties(_C PROPERTIES
    INSTALL_RPATH "${package_rpath}"
    UNITY_BUILD ${TENSOROPT_UNITY} UNITY_BUILD_BATCH_SIZE 5)
  add_dependencies(python_libs _C)
  install(TARGETS _C LIBRARY DESTINATION tensoropt_torch)
endif()
