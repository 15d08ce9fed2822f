#include "tracer.h"

namespace gradual {
namespace {

std::string kind_of(const Tensor& t) { return to_string(t.sizes()) + " " + std::string(name(t.dtype())); }

std::string operand(const OpCall& call, int i) {
  if (call[i].defined()) return kind_of(call[i]);
  if (!call.attrs->is<ScalarAttrs>()) return "none";
  char text[32];
  std::snprintf(text, sizeof text, "%g", call.get<ScalarAttrs>().value);
  return text;
}

std::string duration(double seconds) {
  char text[32];
  if (seconds < 1e-3) {
    std::snprintf(text, sizeof text, "%7.1f us", seconds * 1e6);
  } else {
    std::snprintf(text, sizeof text, "%7.2f ms", seconds * 1e3);
  }
  return text;
}

std::string losses(const CastCounts& c) {
  std::string text;
  const auto add = [&](std::uint64_t n, const char* what) {
    if (n) text += (text.empty() ? "" : ", ") + std::to_string(n) + " " + what;
  };
  add(c.underflow, "underflow");
  add(c.subnormal, "subnormal");
  add(c.overflow, "overflow");
  add(c.nan, "NaN");
  add(c.inf, "Inf");
  return text;
}

std::string pad(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text + ' ';
}

}  // namespace

std::string signature(const OpCall& call, const Outputs& out) {
  std::string text;
  for (int i = 0; i < call.inputs.size(); ++i) text += (i ? " x " : "") + operand(call, i);
  text += " -> ";
  for (int i = 0; i < kMaxOutputs && out[i].defined(); ++i) text += (i ? ", " : "") + kind_of(out[i]);
  return text;
}

Tracer::Tracer(std::FILE* file, bool counts)
    : Tracer([file](const std::string& line) { std::fprintf(file, "%s\n", line.c_str()); }, counts) {}

void Tracer::after(const OpCall& call, const Outputs& out, const CallRecord& record) {
  const Context& c = record.context;
  std::string line = pad(std::string(name(c.phase)), 9);
  const std::string op(name(call.op));
  line += pad(*c.backward_of && c.backward_of != op ? op + " (of " + c.backward_of + ")" : op, 22);
  line += pad(signature(call, out), 52);
  line += pad(*c.module ? c.module : "-", 14);
  line += pad(place(call.where), 18);
  line += duration(record.seconds);
  if (*c.cause) line += std::string("  # ") + c.cause;
  if (const std::string lost = losses(record.counts); !lost.empty()) line += "  ! " + lost;
  sink_(line);
}

}  // namespace gradual
