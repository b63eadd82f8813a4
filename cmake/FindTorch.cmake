# Finds Python and the torch it imports, without torch's own CMake package:
# that one asks for a CUDA toolkit whenever torch was built with CUDA, and
# nothing here compiles CUDA code.
#
# Defines the target torch_libs and the variable TENSOROPT_TORCH_DIR.

find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)

if(NOT TENSOROPT_TORCH_DIR)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c
            "import os, torch; print(os.path.dirname(torch.__file__))"
    OUTPUT_VARIABLE TENSOROPT_TORCH_DIR
    OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE torch_missing)
  if(torch_missing)
    message(FATAL_ERROR
      "${Python_EXECUTABLE} cannot import torch. Install PyTorch first "
      "(https://pytorch.org/get-started), pass -DPython_EXECUTABLE=<python>, "
      "or build only the core with -DTENSOROPT_CORE_ONLY=ON")
  endif()
endif()

add_library(torch_libs INTERFACE)
target_include_directories(torch_libs SYSTEM INTERFACE
  ${TENSOROPT_TORCH_DIR}/include
  ${TENSOROPT_TORCH_DIR}/include/torch/csrc/api/include)
target_link_directories(torch_libs INTERFACE ${TENSOROPT_TORCH_DIR}/lib)
target_link_libraries(torch_libs INTERFACE torch torch_cpu c10)
target_compile_definitions(torch_libs INTERFACE USE_DISTRIBUTED USE_C10D_GLOO)
