# Names what is missing before CMake stops with a message of its own: included ahead of project().
set(MAMBA_OPS_APT_LINE
    "sudo apt install -y build-essential cmake ninja-build python3-venv python3-dev libgtest-dev")

function(mamba_missing what)
  message(FATAL_ERROR "mamba_ops needs ${what}, which was not found. On Debian and Ubuntu all prerequisites come with\n"
                      "  ${MAMBA_OPS_APT_LINE}\n")
endfunction()

if(NOT CMAKE_CXX_COMPILER AND NOT DEFINED ENV{CXX})
  find_program(mamba_cxx NAMES c++ g++ clang++ NO_CACHE)
  if(NOT mamba_cxx)
    mamba_missing("a C++17 compiler")
  endif()
endif()
if(CMAKE_GENERATOR MATCHES "Ninja" AND NOT CMAKE_MAKE_PROGRAM)
  find_program(mamba_ninja NAMES ninja ninja-build NO_CACHE)
  if(NOT mamba_ninja)
    mamba_missing("ninja")
  endif()
endif()
