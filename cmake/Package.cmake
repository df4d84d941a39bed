# What is installed, in three components: library (also for C++ users of an installed tree), python and build_info
# (with it, the importable package that python/ stages and the wheel ships).
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

mamba_configure_library(mamba_ops)
if(NOT TARGET mamba_ops::mamba_ops)
  add_library(mamba_ops::mamba_ops ALIAS mamba_ops)
endif()

# The operators register themselves when the library is loaded; a program that calls them only through TorchScript refers
# to no symbol of ours, and its linker would drop the library.
target_link_options(mamba_ops INTERFACE
                    "LINKER:--push-state,--no-as-needed,$<TARGET_FILE:mamba_ops::mamba_ops>,--pop-state")
target_link_libraries(mamba_ops INTERFACE libtorch::torch)

# In site-packages torch is the neighbour of mamba_ops; elsewhere it stays where it was found. Written out, because
# INSTALL_RPATH_USE_LINK_PATH leaves out what lies below the source folder, as build/venv does.
set(mamba_rpath "$ORIGIN/../../torch/lib")
set(MAMBA_OPS_TORCH_HINT "")
if(NOT DEFINED SKBUILD)
  list(APPEND mamba_rpath "${Libtorch_DIR}/lib")
  set(MAMBA_OPS_TORCH_HINT "${Libtorch_DIR}")
endif()
set_target_properties(mamba_ops PROPERTIES INSTALL_RPATH "${mamba_rpath}")

set(mamba_cmake_dir lib/cmake/mamba_ops)
install(TARGETS mamba_ops EXPORT mamba_opsTargets COMPONENT library LIBRARY DESTINATION lib
        INCLUDES DESTINATION include)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/op/include/mamba" DESTINATION include COMPONENT library
        FILES_MATCHING PATTERN "*.h")
install(EXPORT mamba_opsTargets NAMESPACE mamba_ops:: DESTINATION ${mamba_cmake_dir} COMPONENT library)

string(REGEX MATCH "^[0-9]+\\.[0-9]+" MAMBA_OPS_TORCH_MINOR "${Libtorch_VERSION}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/mamba_opsConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/mamba_opsConfig.cmake" INSTALL_DESTINATION ${mamba_cmake_dir})
write_basic_package_version_file("${PROJECT_BINARY_DIR}/mamba_opsConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/mamba_opsConfig.cmake" "${PROJECT_BINARY_DIR}/mamba_opsConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindLibtorch.cmake"
        DESTINATION ${mamba_cmake_dir} COMPONENT library)

set(build_info_cuda null)
set(build_info_architectures "")
if(MAMBA_OPS_WITH_CUDA)
  set(build_info_cuda "\"${CMAKE_CUDA_COMPILER_VERSION}\"")
  list(TRANSFORM CMAKE_CUDA_ARCHITECTURES REPLACE "(.+)" "\"\\1\"" OUTPUT_VARIABLE build_info_architectures)
  list(JOIN build_info_architectures ", " build_info_architectures)
endif()
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/build_info.json" @ONLY CONTENT [[{
  "version": "@PROJECT_VERSION@",
  "torch": "@Libtorch_VERSION@",
  "cuda": @build_info_cuda@,
  "cuda_architectures": [@build_info_architectures@],
  "build_type": "@CMAKE_BUILD_TYPE@"
}
]])
install(FILES "${PROJECT_BINARY_DIR}/build_info.json" DESTINATION . COMPONENT build_info EXCLUDE_FROM_ALL)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/python/mamba_ops/" DESTINATION . COMPONENT python EXCLUDE_FROM_ALL
        FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN "__pycache__" EXCLUDE)
