// SPDX-License-Identifier: Apache-2.0
#ifndef CHOIR_TESTS_TESTING_CONFIG_TEXT_H_
#define CHOIR_TESTS_TESTING_CONFIG_TEXT_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/field.h"

namespace choir {
namespace testing {

// A config struct with its defaults, then "name=value ..." of `text`. Values
// are stored unchecked, so that whoever takes the struct has to find what is
// wrong. Enums by number.
inline std::vector<unsigned char> ConfigFromText(const choir_struct_def_t* def,
                                                 const std::string& text) {
  std::vector<unsigned char> config(def->bytes);
  choir_struct_init(def, config.data());
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find(' ', start), text.size());
    const std::string setting = text.substr(start, end - start);
    start = end + 1;
    const size_t equals = setting.find('=');
    const choir_field_t* field =
        choir_struct_find(def, setting.substr(0, equals).c_str());
    if (!field) {
      ADD_FAILURE() << def->name << " has no field for " << setting;
      continue;
    }
    const std::string value = setting.substr(equals + 1);
    unsigned char* place = &config[field->offset];
    switch (field->kind) {
      case CHOIR_FIELD_KIND_BOOL: {
        const bool is_set = value == "true";
        std::memcpy(place, &is_set, sizeof is_set);
        break;
      }
      case CHOIR_FIELD_KIND_INT: {
        const int64_t number = std::strtoll(value.c_str(), nullptr, 10);
        std::memcpy(place, &number, sizeof number);
        break;
      }
      case CHOIR_FIELD_KIND_FLOAT: {
        const double number = std::strtod(value.c_str(), nullptr);
        std::memcpy(place, &number, sizeof number);
        break;
      }
      case CHOIR_FIELD_KIND_ENUM: {
        const int32_t number = std::atoi(value.c_str());
        std::memcpy(place, &number, sizeof number);
        break;
      }
      case CHOIR_FIELD_KIND_STRING:
        ADD_FAILURE() << "a string field: " << setting;
    }
  }
  return config;
}

}  // namespace testing
}  // namespace choir

#endif  // CHOIR_TESTS_TESTING_CONFIG_TEXT_H_
