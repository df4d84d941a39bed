// The cases that every CUDA scan kernel is tested on.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "cuda_scan_case.h"

namespace mamba::testing {

#ifndef MAMBA_TEST_RANDOM_CASES
#define MAMBA_TEST_RANDOM_CASES 300
#endif
constexpr unsigned kRandomCases = MAMBA_TEST_RANDOM_CASES;

inline std::string case_name(const ::testing::TestParamInfo<ScanCase>& info) {
  return info.param.name;
}

/// Sizes around the edges of tiles and of vectors; each option alone and all of them; each layout.
inline std::vector<ScanCase> case_table() {
  std::vector<ScanCase> table;
  auto add = [&](const std::string& name, auto&& change) {
    ScanCase c;
    c.name = name;
    change(c);
    table.push_back(c);
  };
  add("plain", [](ScanCase&) {});
  add("softplus", [](ScanCase& c) { c.softplus = true; });
  add("bias", [](ScanCase& c) { c.has_bias = c.softplus = true; });
  add("skip", [](ScanCase& c) { c.has_D = true; });
  add("gate", [](ScanCase& c) { c.has_z = true; });
  add("initial_state", [](ScanCase& c) { c.has_initial_state = true; });
  add("reverse", [](ScanCase& c) { c.reverse = true; });
  for (const int64_t length : {1, 2, 3, 4, 31, 32, 36, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513, 1025}) {
    add("length_" + std::to_string(length), [=](ScanCase& c) { c.with_all_options().length = length; });
    add("reverse_length_" + std::to_string(length), [=](ScanCase& c) {
      c.with_all_options().length = length;
      c.reverse = true;
    });
  }
  for (const int64_t dstate : {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 64, 65, 100, 128, 129, 200, 256, 300}) {
    add("dstate_" + std::to_string(dstate), [=](ScanCase& c) { c.with_all_options().dstate = dstate; });
  }
  for (const int64_t dim : {1, 2, 7, 31, 32, 33, 64, 65, 129, 257}) {
    add("dim_" + std::to_string(dim), [=](ScanCase& c) { c.with_all_options().dim = dim; });
  }
  add("long", [](ScanCase& c) {  // few rows: cut along time
    c.with_all_options().length = 8200;
    c.batch = 1, c.dim = 3, c.dstate = 8;
  });
  add("groups", [](ScanCase& c) {
    c.with_all_options().dim = 24;
    c.B_groups = 3, c.C_groups = 2;
  });
  add("wide_groups", [](ScanCase& c) {
    c.with_all_options().dim = 280;
    c.B_groups = 2, c.C_groups = 4;
  });
  const std::pair<const char*, ScalarType> types[] = {
      {"float32", ScalarType::kFloat32}, {"float16", ScalarType::kFloat16}, {"bfloat16", ScalarType::kBFloat16}};
  for (const auto& [type_name, type] : types) {
    for (const int64_t length : {64, 77}) {
      for (const bool reverse : {false, true}) {
        for (const Layout layout : {Layout::kTime, Layout::kChannel, Layout::kPitched, Layout::kScattered}) {
          const std::string name = std::string(type_name) + "_layout_" + std::to_string(static_cast<int>(layout)) +
                                   "_length_" + std::to_string(length) + (reverse ? "_reverse" : "");
          add(name, [&](ScanCase& c) {
            c.with_all_options().type = type;
            c.dim = 72, c.length = length, c.dstate = 16, c.reverse = reverse;
            c.activations = c.gate = c.coefficients = layout;
          });
        }
      }
    }
    add(std::string(type_name) + "_mixed_layouts", [&](ScanCase& c) {
      c.with_all_options().type = type;
      c.dim = 40, c.length = 96, c.dstate = 16;
      c.gate = c.coefficients = Layout::kChannel;
    });
  }
  const std::vector<int64_t> packings[] = {
      {0, 20, 20, 100, 128}, {3, 3, 4, 5, 69, 101, 133, 133}, {0, 0}, {17, 130}, {130, 130}, {0, 64, 128, 130}};
  int packing = 0;
  for (const auto& cu_seqlens : packings) {
    for (const bool reverse : {false, true}) {
      add("packed_" + std::to_string(packing) + (reverse ? "_reverse" : ""), [&](ScanCase& c) {
        c.with_all_options().batch = 1;
        c.length = 130, c.dim = 40, c.dstate = 16, c.reverse = reverse;
        c.cu_seqlens = cu_seqlens;
      });
    }
    ++packing;
  }
  return table;
}

/// Few and small, but with every path of every kernel: the sanitizers slow kernels down a hundredfold.
inline std::vector<ScanCase> sanitizer_cases() {
  std::vector<ScanCase> chosen;
  for (const ScanCase& c : case_table()) {
    for (const char* name :
         {"plain", "dstate_1", "dstate_7", "dstate_33", "dstate_100", "dstate_256", "length_257", "reverse_length_65",
          "wide_groups", "float32_layout_1_length_77_reverse", "float32_layout_2_length_77",
          "bfloat16_layout_0_length_64", "bfloat16_layout_1_length_64", "float16_layout_3_length_77", "packed_1"}) {
      if (c.name == name) chosen.push_back(c);
    }
  }
  return chosen;
}

/// Everything drawn at random, with a liking for the sizes of tiles and vectors.
inline ScanCase random_case(unsigned seed) {
  std::mt19937 generator(seed);
  auto below = [&](int64_t n) { return static_cast<int64_t>(generator() % static_cast<unsigned long>(n)); };
  auto one_of = [&](std::initializer_list<int64_t> values) {
    return values.begin()[below(static_cast<int64_t>(values.size()))];
  };
  ScanCase c;
  c.name = "random_" + std::to_string(seed);
  c.type = static_cast<ScalarType>(below(3));
  c.batch = 1 + below(3);
  c.B_groups = one_of({1, 1, 1, 2, 3}), c.C_groups = one_of({1, 1, 1, 2, 3});
  c.dim = c.B_groups * c.C_groups * (1 + below(one_of({4, 20, 80})));
  c.length = one_of({below(20), 32 * (1 + below(6)), 4 * (1 + below(60)), 1 + below(300), 1 + below(1200)}) + 1;
  c.dstate = one_of({16, 16, 1 + below(16), 1 + below(64), 1 + below(256)});
  if (c.dim * c.length * c.dstate * c.batch > 2000000) c.length = c.length % 97 + 1;
  bool* const options[] = {&c.softplus, &c.has_bias, &c.has_D, &c.has_z, &c.has_initial_state, &c.reverse};
  for (bool* option : options) *option = below(2) == 0;
  c.activations = static_cast<Layout>(below(4));
  c.gate = below(2) == 0 ? c.activations : static_cast<Layout>(below(4));
  c.coefficients = static_cast<Layout>(below(4));
  if (below(4) == 0) {
    c.batch = 1;
    int64_t at = below(5);
    for (c.cu_seqlens = {at}; at < c.length && below(8) != 0;) {
      at = std::min(c.length, at + below(one_of({3, 40, 200})));
      c.cu_seqlens.push_back(at);
    }
    for (int64_t& bound : c.cu_seqlens) bound = std::min(bound, c.length);
    if (c.cu_seqlens.size() == 1) c.cu_seqlens.push_back(c.length);
  }
  return c;
}

}  // namespace mamba::testing
