#include "tracer.h"

#include <fmt/format.h>

#include "../ops/parameter_inputs.h"

namespace gradual {

static std::string losses(const CastCounts& c) {
  const std::pair<std::uint64_t, const char*> all[] = {
      {c.underflow, "underflow"}, {c.subnormal, "subnormal"}, {c.overflow, "overflow"}, {c.nan, "NaN"}, {c.inf, "Inf"}};
  std::string text;
  for (const auto& [n, what] : all)
    if (n) text += fmt::format("{}{} {}", text.empty() ? "  ! " : ", ", n, what);
  return text;
}

// "[32, 64] f16 x [64, 10] f16 -> [32, 10] f16"
static std::string signature(const OpCall& call, const Outputs& out) {
  if (const int n = parameter_inputs(call).count) return fmt::format("{} parameter{}", n, n == 1 ? "" : "s");
  std::string text = describe_inputs(call);
  for (int i = 0; i < kMaxOutputs && out[i].defined(); ++i) text += (i ? ", " : " -> ") + describe(out[i]);
  return text;
}

Tracer::Tracer(std::FILE* file, bool counts)
    : Tracer([file](const std::string& line) { std::fprintf(file, "%s\n", line.c_str()); }, counts) {}

void Tracer::after(const OpCall& call, const Outputs& out, const CallRecord& record) {
  const Context& c = record.context;
  std::string op(called(call));
  if (*c.backward_of && c.backward_of != op) op += fmt::format(" (of {})", c.backward_of);
  const double us = record.seconds * 1e6;
  sink_(fmt::format("{:<9} {:<22} {:<52} {:<14} {:<18} {}{}{}{}", to_string(c.phase), op, signature(call, out),
                    *c.module ? c.module : "-", file_line(call.where),
                    us < 1e3 ? fmt::format("{:7.1f} us", us) : fmt::format("{:7.2f} ms", us * 1e-3),
                    *c.cause->text ? "  # " : "", c.cause->text, losses(record.counts)));
  const ParameterInputs parameters = parameter_inputs(call);
  for (int k = 0; k < parameters.count; ++k) {
    const OpCall one = call_of_parameter(call, parameters, k);
    const auto i = static_cast<std::size_t>(k);
    sink_(fmt::format("{:<9} {:<22} {} -> {}{}", "", "", describe_inputs(one), describe(one[parameters.written]),
                      i < record.counts_by_parameter.size() ? losses(record.counts_by_parameter[i]) : ""));
  }
}

}  // namespace gradual
