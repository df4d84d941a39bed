# What every target of this project shares.
find_package(OpenMP REQUIRED COMPONENTS CXX)

# Standard, visibility and warnings of one target. Torch's headers are SYSTEM, so the warnings are about our code only.
function(mamba_configure_target target)
  target_compile_features(${target} PRIVATE cxx_std_17)
  set_target_properties(${target} PROPERTIES
    CXX_EXTENSIONS OFF CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wconversion>)
  if(MAMBA_OPS_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
  if(MAMBA_OPS_WITH_CUDA)
    set_target_properties(${target} PROPERTIES CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF
      CUDA_RUNTIME_LIBRARY Static)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wconversion>)
    if(MAMBA_OPS_WARNINGS_AS_ERRORS)
      target_compile_options(${target} PRIVATE
        "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Werror;SHELL:--Werror all-warnings>")
    endif()
  endif()
  if(MAMBA_OPS_SANITIZE)
    set(sanitize -fsanitize=${MAMBA_OPS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${sanitize}>")
    target_link_options(${target} PRIVATE -fsanitize=${MAMBA_OPS_SANITIZE})
  endif()
endfunction()

# How the shared library is linked: complete, with nothing but the public functions visible, and loadable anywhere.
function(mamba_configure_library target)
  set(symbols "${PROJECT_SOURCE_DIR}/cmake/symbols.map")
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${symbols}")
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
  target_link_options(${target} PRIVATE "LINKER:--no-undefined,--as-needed,--version-script=${symbols}")
  # Without OpenMP in the translation unit at::parallel_for is a serial loop. By flag, not by the library's path: at run
  # time the libgomp must be the one that torch brings.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${OpenMP_CXX_FLAGS}>)
  target_link_options(${target} PRIVATE ${OpenMP_CXX_FLAGS})
  if(MAMBA_OPS_WITH_CUDA)
    find_package(CUDAToolkit REQUIRED)
    target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  endif()
endfunction()
