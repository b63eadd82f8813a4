# Target tensoropt_fmt: the header-only fmt bundled with torch, or the one named
# by TENSOROPT_FMT_INCLUDE_DIR, or the system's. Only the folder fmt/ becomes
# visible, so that the core cannot include torch by accident.

if(TENSOROPT_FMT_INCLUDE_DIR)
  set(fmt_parent ${TENSOROPT_FMT_INCLUDE_DIR})
elseif(TENSOROPT_TORCH_DIR)
  set(fmt_parent ${TENSOROPT_TORCH_DIR}/include)
else()
  find_path(TENSOROPT_SYSTEM_FMT fmt/format.h)
  set(fmt_parent ${TENSOROPT_SYSTEM_FMT})
endif()
if(NOT EXISTS ${fmt_parent}/fmt/format.h)
  message(FATAL_ERROR
    "fmt/format.h not found in '${fmt_parent}'; pass "
    "-DTENSOROPT_FMT_INCLUDE_DIR=<torch>/include or install libfmt-dev")
endif()

set(fmt_only ${PROJECT_BINARY_DIR}/fmt_include)
file(MAKE_DIRECTORY ${fmt_only})
file(REMOVE ${fmt_only}/fmt)
file(CREATE_LINK ${fmt_parent}/fmt ${fmt_only}/fmt SYMBOLIC)

add_library(tensoropt_fmt INTERFACE)
target_include_directories(tensoropt_fmt SYSTEM INTERFACE ${fmt_only})
