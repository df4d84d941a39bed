# Google Benchmark: the system's, else its release archive, pinned by hash.
find_package(benchmark QUIET)
if(NOT benchmark_FOUND)
  include(FetchContent)
  message(STATUS "Google Benchmark is not installed (libbenchmark-dev): downloading it")
  set(BENCHMARK_ENABLE_TESTING OFF CACHE BOOL "" FORCE)
  set(BENCHMARK_ENABLE_INSTALL OFF CACHE BOOL "" FORCE)
  FetchContent_Declare(benchmark
    URL https://github.com/google/benchmark/archive/refs/tags/v1.9.5.tar.gz
    URL_HASH SHA256=9631341c82bac4a288bef951f8b26b41f69021794184ece969f8473977eaa340
    DOWNLOAD_EXTRACT_TIMESTAMP TRUE)
  FetchContent_MakeAvailable(benchmark)
endif()
