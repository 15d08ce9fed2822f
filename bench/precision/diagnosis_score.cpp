#include "diagnosis_score.h"

#include <fmt/format.h>
#include <gradual/amp/site_name.h>
#include <gradual/gradual.h>
#include <gradual/inspect/cures.h>
#include <gradual/lab/run.h>
#include <gradual/lab/verdict.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace gradual::precision_bench {
namespace {

using Json = nlohmann::json;

constexpr double kLearns = 0.65;        // accuracy of f32
constexpr double kHurts = 0.05;         // of accuracy, by a control
constexpr double kHarmless = 0.01;      // of accuracy
constexpr double kHarmlessLoss = 0.04;  // of f32's loss
constexpr std::size_t kListed = 3;

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

lab::Result train(const Instance& instance, const amp::Recipe& recipe, std::uint64_t seed = 0) {
  const lab::MakeModel make_model = model_of(instance);
  const lab::LabData data = data_of(instance);
  const lab::Options options = options_of(instance);
  lab::Run run(make_model, data, recipe, seed, options);
  run.train("", {.recipe = recipe, .seed = seed});
  return run.result();
}

lab::Result judged(const lab::Result& run, const lab::Result& fp32) {
  std::vector<lab::Result> results = {run};
  lab::judge(results, {fp32});
  return results[0];
}

amp::Recipe fp32() { return amp::recipe("fp32"); }

Check check_failure(const Instance& i) {
  const lab::Result exact = train(i, fp32());
  if (!(exact.test_accuracy >= kLearns)) return {.why = fmt::format("f32 reaches {:.1f}%", 100 * exact.test_accuracy)};
  const lab::Result run = judged(train(i, i.recipe), exact);
  if (!lab::verdict_info(run.verdict.kind).fails) return {.why = "does not clearly fail: " + to_string(run.verdict)};
  Instance mended = i;
  if (i.truth.cured_in_code) mended.model.mended = true;
  const lab::Result cured = judged(train(mended, i.truth.cured_in_code ? i.recipe : i.truth.cured), exact);
  if (lab::fails(cured)) return {.why = "the truth's cure fails: " + to_string(cured.verdict)};
  return {.counts = true};
}

Check check_control(const Instance& i, const Instance& twin) {
  const lab::Result exact = train(twin, fp32());
  const lab::Result run = train(i, fp32());
  if (!(exact.test_accuracy >= kLearns)) return {.why = "the twin does not learn"};
  if (run.test_accuracy > exact.test_accuracy - kHurts) return {.why = "does not hurt"};
  if (train(i, i.recipe).test_accuracy > exact.test_accuracy - kHurts) return {.why = "does not hurt its recipe"};
  return {.counts = true};
}

// Of other seeds than the one that is diagnosed, so that the check does not choose what the verdict sees.
Check check_healthy(const Instance& i) {
  double points = 0;
  double loss = 0;
  constexpr std::uint64_t kSeeds = 2;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const lab::Result exact = train(i, fp32(), seed);
    if (!(exact.test_accuracy >= kLearns)) return {.why = "f32 does not learn"};
    const lab::Result run = train(i, i.recipe, seed);
    points += (exact.test_accuracy - run.test_accuracy) / kSeeds;
    loss += (run.test_loss / exact.test_loss - 1) / kSeeds;
  }
  if (!(points <= kHarmless && loss <= kHarmlessLoss))
    return {.why = fmt::format("hurts: {:.1f} points, loss {:+.0f}%", -100 * points, 100 * loss)};
  return {.counts = true};
}

// The processor time of the trainings of a comparison, from its reports after each step.
class Clock {
 public:
  void tick(const std::string& recipe) {
    const double now = processor_seconds();
    auto [at, is_new] = runs_.try_emplace(recipe, Times{now, now, 0});
    at->second.last = now;
    ++at->second.ticks;
  }
  // The first step has no tick before it: it counts as the mean of the others.
  double seconds(const std::string& recipe) const {
    const auto at = runs_.find(recipe);
    if (at == runs_.end() || at->second.ticks < 2) return 0;
    const Times& t = at->second;
    return (t.last - t.first) * t.ticks / (t.ticks - 1);
  }

 private:
  struct Times {
    double first = 0;
    double last = 0;
    double ticks = 0;
  };
  std::map<std::string, Times> runs_;
};

// The leaves of an object by path.
void flatten(const Json& from, const std::string& path, std::map<std::string, Json>& fields) {
  if (!from.is_object() || from.empty()) {
    fields[path] = from;
    return;
  }
  for (const auto& [key, value] : from.items()) flatten(value, path + "/" + key, fields);
}
std::map<std::string, Json> fields_of(amp::Recipe recipe) {
  recipe.name = "any";
  recipe.description = "";
  std::map<std::string, Json> fields;
  flatten(Json::parse(amp::to_json(recipe)), "", fields);
  return fields;
}

bool is_inside(const std::string& path, const std::string& outer, char separator) {
  return path == outer || (path.starts_with(outer) && path[outer.size()] == separator);
}

// "FILE:N" within "FILE:FIRST-LAST".
bool is_line_of(const std::string& found, const std::string& lines) {
  const std::size_t colon = lines.rfind(':');
  const std::size_t dash = lines.rfind('-');
  if (colon == std::string::npos || dash == std::string::npos || dash < colon) return false;
  const std::size_t at = found.find(lines.substr(0, colon + 1));
  if (at == std::string::npos) return false;
  const int line = std::atoi(found.c_str() + at + colon + 1);
  return line >= std::atoi(lines.c_str() + colon + 1) && line <= std::atoi(lines.c_str() + dash + 1);
}

bool is_true_cause(const Instance& i, const Answer& a) {
  return a.cause && a.precision == (i.group == Group::failure) && std::ranges::count(i.truth.causes, *a.cause) > 0;
}

Answer answer_of(const lab::Finding& f) {
  Answer answer{.cause = f.cause, .precision = f.precision, .site = f.site, .phase = f.phase, .role = f.role};
  answer.cure = f.cure;
  answer.sentence = f.sentence;
  return answer;
}

void score_answers(const Instance& i, const std::vector<Answer>& answers, Score& score) {
  score.has_site = !i.truth.sites.empty();
  if (answers.empty()) return;
  const Answer& first = answers.front();
  score.cause = first.cause ? std::string(inspect::to_string(*first.cause)) : "";
  score.site = first.site;
  score.phase = first.phase ? std::string(to_string(*first.phase)) : "";
  score.role = std::string(to_string(first.role));
  score.cure = first.cure;
  score.sentence = first.sentence;
  score.cause_first = is_true_cause(i, first);
  for (std::size_t n = 0; n < std::min(answers.size(), kListed); ++n)
    score.cause_listed = score.cause_listed || is_true_cause(i, answers[n]);
  score.site_right = score.has_site && is_site(first.site, i.truth.sites);
  score.role_right = i.truth.roles.empty() || std::ranges::count(i.truth.roles, first.role) > 0;
  score.phase_right = i.truth.phases.empty() || (first.phase && std::ranges::count(i.truth.phases, *first.phase) > 0);
}

Score score_without_answers(const Instance& i) {
  if (i.group == Group::failure && i.truth.roles.empty())
    throw Error("precision-bench: the truth of " + i.kind + " names no role, so that any would be right");
  Score score{.id = i.id(), .kind = i.kind, .family = std::string(to_string(i.model.family)), .group = i.group};
  score.seed = i.seed;
  score.counts = true;
  score.description = describe(i);
  return score;
}

// Trains with the cure that the first finding offers first.
void score_cure(const Instance& i, Score& score) try {
  if (score.cure.empty()) return;
  const amp::Recipe cured = inspect::edited(i.recipe, score.cure);
  score.specific = is_specific(i.recipe, cured, i.truth.specific);
  score.cure_works = !lab::fails(judged(train(i, cured), train(i, fp32())));
} catch (const Error&) { score.cure_works = false; }

}  // namespace

Check check(const Instance& instance, const Instance& twin) {
  if (instance.group == Group::failure) return check_failure(instance);
  return instance.group == Group::control ? check_control(instance, twin) : check_healthy(instance);
}

bool is_site(const std::string& found, const std::vector<std::string>& sites) {
  const std::string path = amp::site_name(found).layer;
  return std::ranges::any_of(
      sites, [&](const std::string& site) { return is_inside(path, site, '.') || is_line_of(found, site); });
}

bool is_specific(const amp::Recipe& from, const amp::Recipe& to, const std::vector<std::string>& allowed) {
  const std::map<std::string, Json> before = fields_of(from);
  const std::map<std::string, Json> after = fields_of(to);
  std::vector<std::string> changed;
  for (const auto& [path, value] : before)
    if (!after.contains(path) || after.at(path) != value) changed.push_back(path);
  for (const auto& [path, value] : after)
    if (!before.contains(path)) changed.push_back(path);
  return !changed.empty() && std::ranges::all_of(changed, [&](const std::string& path) {
    return std::ranges::any_of(allowed, [&](const std::string& outer) { return is_inside(path, outer, '/'); });
  });
}

Score diagnose(const Instance& i) {
  Score score = score_without_answers(i);
  Clock clock;
  lab::Options options = options_of(i);
  options.progress = [&](const lab::Progress& p) { clock.tick(p.recipe.name); };
  const double start = processor_seconds();
  const lab::Result result = lab::compare(model_of(i), data_of(i), {i.recipe}, "", options).front();
  const double all = processor_seconds() - start;
  const double run = clock.seconds(i.recipe.name);
  const double exact = clock.seconds("fp32");
  score.cost = run > 0 ? (all - run - exact) / run : 0;
  score.cost_in_trainings = exact > 0 ? (all - run - exact) / exact : 0;
  score.verdict = to_string(result.verdict);
  const bool blames_recipe = result.verdict.kind != lab::VerdictKind::not_precision;
  score.verdict_right = lab::fails(result) && blames_recipe == (i.group == Group::failure);
  if (i.group == Group::healthy) {
    score.false_alarm = lab::is_alarm(result);
    score.verdict_right = !score.false_alarm;
  }
  std::vector<Answer> answers;
  for (const lab::Finding& f : result.findings) answers.push_back(answer_of(f));
  score_answers(i, answers, score);
  if (i.group == Group::failure) score_cure(i, score);
  return score;
}

Score score_of(const Instance& i, const std::vector<Answer>& answers) {
  Score score = score_without_answers(i);
  const bool alarm = !answers.empty();
  score.verdict_right = alarm && answers.front().precision == (i.group == Group::failure);
  if (i.group == Group::healthy) {
    score.verdict_right = !alarm;
    score.false_alarm = alarm;
  }
  score_answers(i, answers, score);
  if (i.group == Group::failure) score_cure(i, score);
  return score;
}

namespace {

template <class V, class S> void fields(V&& v, S& s) {
  v("id", s.id);
  v("kind", s.kind);
  v("family", s.family);
  v("seed", s.seed);
  v("rejected", s.rejected);
  v("counts", s.counts);
  v("verdict", s.verdict);
  v("verdict_right", s.verdict_right);
  v("cause", s.cause);
  v("site", s.site);
  v("phase", s.phase);
  v("cure", s.cure);
  v("sentence", s.sentence);
  v("cause_first", s.cause_first);
  v("cause_listed", s.cause_listed);
  v("has_site", s.has_site);
  v("site_right", s.site_right);
  v("phase_right", s.phase_right);
  v("role", s.role);
  v("role_right", s.role_right);
  v("specific", s.specific);
  v("cure_works", s.cure_works);
  v("false_alarm", s.false_alarm);
  v("cost", s.cost);
  v("cost_in_trainings", s.cost_in_trainings);
  v("seconds", s.seconds);
  v("description", s.description);
}

}  // namespace

std::string to_json(const Score& score) {
  Json j{{"group", std::string(to_string(score.group))}};
  fields([&](const char* name, const auto& value) { j[name] = value; }, score);
  return j.dump();
}

std::optional<Score> score_from_json(const std::string& line) {
  const Json j = Json::parse(line, nullptr, false);
  if (j.is_discarded()) return std::nullopt;
  Score score;
  for (const Group group : {Group::failure, Group::control, Group::healthy})
    if (j.at("group") == std::string(to_string(group))) score.group = group;
  fields([&](const char* name, auto& value) { j.at(name).get_to(value); }, score);
  return score;
}

}  // namespace gradual::precision_bench
