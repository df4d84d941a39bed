# Finds libtorch by its files alone. torch's own package demands a CUDA toolkit even for CPU code and rewrites the CUDA
# flags; this one needs neither and takes milliseconds.
#
# Searched, in this order: Libtorch_ROOT, Torch_DIR, CMAKE_PREFIX_PATH, the directories in Libtorch_HINTS, the torch of
# the active Python (Python3_EXECUTABLE).
# Targets:   libtorch::c10, libtorch::torch_cpu: to compile and link a library against
#            libtorch::torch: the whole runtime for an executable, the CUDA backend included where the install has it
# Variables: Libtorch_VERSION, Libtorch_DIR, Libtorch_PYTHON (when found through it), Libtorch_CXX_STANDARD
include(FindPackageHandleStandardArgs)

set(_libtorch_candidates ${Libtorch_ROOT})
foreach(_dir IN LISTS Torch_DIR CMAKE_PREFIX_PATH)
  list(APPEND _libtorch_candidates "${_dir}" "${_dir}/../.." "${_dir}/../../..")
endforeach()
list(APPEND _libtorch_candidates ${Libtorch_HINTS})

macro(_libtorch_pick)
  foreach(_dir IN ITEMS ${ARGN})
    if(NOT Libtorch_DIR AND EXISTS "${_dir}/include/torch/library.h" AND EXISTS "${_dir}/lib/libtorch_cpu.so")
      get_filename_component(Libtorch_DIR "${_dir}" ABSOLUTE)
    endif()
  endforeach()
endmacro()

unset(Libtorch_DIR)
unset(Libtorch_PYTHON)
_libtorch_pick(${_libtorch_candidates})
if(NOT Libtorch_DIR)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(Python3_EXECUTABLE)
    execute_process(
      COMMAND "${Python3_EXECUTABLE}" -c
              "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE _dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE _result)
    if(_result EQUAL 0)
      _libtorch_pick("${_dir}")
      if(Libtorch_DIR)
        set(Libtorch_PYTHON "${Python3_EXECUTABLE}")
      endif()
    endif()
  endif()
endif()

unset(Libtorch_VERSION)
foreach(_header IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(Libtorch_DIR AND NOT Libtorch_VERSION AND EXISTS "${Libtorch_DIR}/include/${_header}")
    file(STRINGS "${Libtorch_DIR}/include/${_header}" _lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX REPLACE "[^0-9;]" "" _lines "${_lines}")
    list(JOIN _lines "." Libtorch_VERSION)
  endif()
endforeach()

find_package_handle_standard_args(Libtorch REQUIRED_VARS Libtorch_DIR VERSION_VAR Libtorch_VERSION)

if(Libtorch_FOUND)
  set(Libtorch_CXX_STANDARD 17)
  if(Libtorch_VERSION VERSION_GREATER_EQUAL 2.13)
    set(Libtorch_CXX_STANDARD 20)
  endif()
endif()
if(Libtorch_FOUND AND NOT TARGET libtorch::torch)
  set(_include "${Libtorch_DIR}/include" "${Libtorch_DIR}/include/torch/csrc/api/include")
  set(_runtime "")
  foreach(_name IN ITEMS c10 torch_cpu c10_cuda torch_cuda)
    set(_file "${Libtorch_DIR}/lib/lib${_name}.so")
    if(EXISTS "${_file}")
      add_library(libtorch::${_name} SHARED IMPORTED)
      set_target_properties(libtorch::${_name} PROPERTIES IMPORTED_LOCATION "${_file}" IMPORTED_SONAME "lib${_name}.so"
        INTERFACE_INCLUDE_DIRECTORIES "${_include}" INTERFACE_COMPILE_FEATURES cxx_std_${Libtorch_CXX_STANDARD})
      list(APPEND _runtime libtorch::${_name})
      string(APPEND _forced ",${_file}")
    endif()
  endforeach()
  set_property(TARGET libtorch::torch_cpu PROPERTY INTERFACE_LINK_LIBRARIES libtorch::c10)
  # A package of AOTInductor needs libtorch.so by that name, and finds it among the libraries of the process.
  if(EXISTS "${Libtorch_DIR}/lib/libtorch.so")
    string(APPEND _forced ",${Libtorch_DIR}/lib/libtorch.so")
  endif()
  # Backends register themselves when loaded; no symbol refers to them, so a linker would drop them. The targets are
  # listed again for the run path.
  add_library(libtorch::torch INTERFACE IMPORTED)
  set_target_properties(libtorch::torch PROPERTIES
    INTERFACE_LINK_LIBRARIES "${_runtime}"
    INTERFACE_LINK_OPTIONS "LINKER:--push-state,--no-as-needed${_forced},--pop-state")
  unset(_forced)
endif()
