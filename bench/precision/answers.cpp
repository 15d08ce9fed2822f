#include "answers.h"

#include <fmt/format.h>
#include <gradual/gradual.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace gradual::precision_bench {
namespace {

using Json = nlohmann::json;

std::string text_at(const Json& answer, const std::string& instance, const char* field) {
  if (!answer.contains(field)) return "";
  const Json& value = answer.at(field);
  if (!value.is_string()) throw Error(fmt::format("{}: {} is {}; a text is expected", instance, field, value.dump()));
  return value.get<std::string>();
}

// The enumerator named `text`, of those from 0 to count.
template <class E> E named(const std::string& text, const std::string& instance, const char* field, int count) {
  std::string allowed;
  for (int n = 0; n < count; ++n) {
    const auto e = static_cast<E>(n);
    if (text == to_string(e)) return e;
    allowed += (allowed.empty() ? "" : ", ") + std::string(to_string(e));
  }
  throw Error(fmt::format("{}: {} is '{}'; allowed are {}", instance, field, text, allowed));
}

void check_fields(const Json& answer, const std::string& instance) {
  const std::set<std::string> known = {"cause", "site", "phase", "role", "cure", "precision"};
  if (!answer.is_object()) throw Error(fmt::format("{} is {}; an object is expected", instance, answer.dump()));
  for (const auto& [field, value] : answer.items())
    if (!known.contains(field))
      throw Error(
          fmt::format("{}: no field '{}'; there are cause, site, phase, role, cure and precision", instance, field));
}

Answer answer_from(const Json& json, const std::string& instance) {
  constexpr int kPhases = 3;
  check_fields(json, instance);
  Answer answer;
  if (const std::string cause = text_at(json, instance, "cause"); !cause.empty())
    answer.cause = named<inspect::Cause>(cause, instance, "cause", inspect::kCauses);
  answer.site = text_at(json, instance, "site");
  if (const std::string phase = text_at(json, instance, "phase"); !phase.empty())
    answer.phase = named<Phase>(phase, instance, "phase", kPhases);
  if (const std::string role = text_at(json, instance, "role"); !role.empty())
    answer.role = named<Role>(role, instance, "role", static_cast<int>(Role::count_));
  if (json.contains("cure") && !json.at("cure").is_null()) {
    const Json& cure = json.at("cure");
    if (!cure.is_object()) throw Error(fmt::format("{}: cure is {}; an object is expected", instance, cure.dump()));
    answer.cure = cure.dump();
  }
  answer.precision = answer.cause && inspect::cause_info(*answer.cause).blame == inspect::Blame::recipe;
  if (json.contains("precision")) {
    const Json& precision = json.at("precision");
    if (!precision.is_boolean())
      throw Error(fmt::format("{}: precision is {}; true or false is expected", instance, precision.dump()));
    answer.precision = precision.get<bool>();
  }
  return answer;
}

}  // namespace

Answers answers_from_json(const std::string& text) {
  const Json all = Json::parse(text, nullptr, false);
  if (!all.is_object()) throw Error("the answers are no JSON object of instances");
  Answers answers;
  for (const auto& [instance, given] : all.items()) {
    std::vector<Answer>& list = answers[instance];
    if (given.is_null()) continue;
    if (!given.is_array()) list.push_back(answer_from(given, instance));
    else
      for (const Json& one : given) list.push_back(answer_from(one, instance));
  }
  return answers;
}

}  // namespace gradual::precision_bench
