# The vectorised CPU kernels: every test of the kernels at every ISA level. A level that this CPU lacks falls back to the
# highest it has.
foreach(level IN ITEMS baseline v3 v4)
  foreach(test IN ITEMS kernel_scan_test kernel_update_test cpu_conv_test cpu_scan_test cpu_numerics_test)
    if(NOT TARGET ${test})
      mamba_kernel_test(${test} ${test}.cpp)
    endif()
    add_test(NAME ${test}_${level} COMMAND ${test})
    set_tests_properties(${test}_${level} PROPERTIES LABELS torch_free TIMEOUT 300 ENVIRONMENT "MAMBA_OPS_CPU=${level}")
  endforeach()
endforeach()

# Their maths and conversions are compiled into the tests themselves, which need the CPU they were compiled for.
set(features "")
if(EXISTS /proc/cpuinfo)
  file(STRINGS /proc/cpuinfo features REGEX "^flags" LIMIT_COUNT 1)
endif()
foreach(level IN LISTS MAMBA_OPS_CPU_LEVELS)
  if((level STREQUAL "v3" AND NOT features MATCHES "avx2.*") OR (level STREQUAL "v4" AND NOT features MATCHES "avx512vl"))
    message(STATUS "The maths of the CPU level ${level} is not tested: this machine cannot run it.")
    continue()
  endif()
  foreach(test IN ITEMS cpu_math_test cpu_convert_test)
    mamba_kernel_test(${test}_${level} ${test}.cpp)
    target_compile_definitions(${test}_${level} PRIVATE MAMBA_OPS_CPU_LEVEL=${level})
    target_compile_options(${test}_${level} PRIVATE ${MAMBA_OPS_CPU_OPTIONS_${level}})
  endforeach()
endforeach()

if(NOT MAMBA_OPS_SANITIZE)
  add_test(NAME cpu_levels_keep_to_themselves
           COMMAND "${CMAKE_COMMAND}" "-DOBJECTS=$<TARGET_OBJECTS:mamba_kernels>" "-DNM=${CMAKE_NM}" -P
                   "${CMAKE_CURRENT_SOURCE_DIR}/process/check_cpu_levels.cmake")
  set_tests_properties(cpu_levels_keep_to_themselves PROPERTIES LABELS torch_free)
endif()
