#include "progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "terminal.h"

namespace gradual::lab {

using Clock = std::chrono::steady_clock;

ProgressBar::ProgressBar(bool quiet, const std::vector<amp::Recipe>& recipes, bool lines)
    : quiet_(quiet), terminal_(!lines && isatty(STDERR_FILENO) == 1) {
  for (const amp::Recipe& r : recipes) width_ = std::max(width_, r.name.size());
}

namespace {

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string duration(double seconds) {
  const auto s = static_cast<std::int64_t>(std::lround(seconds));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {} s", s / 60, s % 60);
  return fmt::format("{} h {} min", s / 3600, s / 60 % 60);
}

}  // namespace

// Resumed runs count for nothing: the speed is that of the steps that were seen.
double ProgressBar::seconds_left(const Progress& p) const {
  const auto left = static_cast<double>((p.runs - p.run) * p.steps - p.step);
  return seen_ > 0 ? seconds_since(started_) / static_cast<double>(seen_) * left : 0;
}

std::string ProgressBar::line(const Progress& p) const {
  const double done = p.steps > 0 ? static_cast<double>(p.step) / static_cast<double>(p.steps) : 1;
  constexpr int kWidth = 20;
  const int full = static_cast<int>(done * kWidth);
  std::string text = fmt::format("[{:>2}/{}] {:<{}} seed {} ", p.run + 1, p.runs, p.recipe.name, width_, p.seed);
  text += "[" + std::string(static_cast<std::size_t>(full), '#') +
          std::string(static_cast<std::size_t>(kWidth - full), '.') + "]";
  const double loss = std::isnan(p.loss) ? std::fabs(p.loss) : p.loss;  // nan, not -nan
  text += fmt::format(" epoch {:>2} loss {:<7.4f}", p.epoch + (p.finished ? 0 : 1), loss);
  if (p.metric.is_accuracy() && p.accuracy >= 0) text += fmt::format(" acc {:5.2f}%", 100 * p.accuracy);
  else if (!std::isnan(p.value)) text += fmt::format(" {} {}", p.metric.name, value_text(p.metric, p.value));
  if (p.scale != 1) text += fmt::format(" scale 2^{:.4g}", std::log2(p.scale));
  if (p.skipped > 0) text += fmt::format(" skipped {}", p.skipped);
  text += " " + duration(seconds_since(run_started_));
  const double left = seconds_left(p);
  return left < 1 ? text : text + ", " + duration(left) + " left";
}

void ProgressBar::operator()(const Progress& p) {
  if (quiet_) return;
  const auto now = Clock::now();
  if (p.run != run_) {
    if (run_ < 0) started_ = now;
    run_ = p.run;
    run_started_ = now;
    drawn_ = terminal_ ? Clock::time_point() : now;
  }
  seen_ += !p.finished;
  if (!told_ && seconds_since(started_) > 2) {
    told_ = true;
    if (const double left = seconds_left(p); left > 60)
      say_styled(stderr, fmt::format("{}about {} in all\n", terminal_ ? "\r\033[K" : "", duration(left)));
  }
  if (!p.finished && now - drawn_ < (terminal_ ? std::chrono::milliseconds(80) : std::chrono::seconds(10))) return;
  drawn_ = now;
  std::string text = line(p);
  if (terminal_) {
    winsize size{};
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 8 && text.size() >= size.ws_col)
      text.resize(size.ws_col - 1);
    say_styled(stderr, fmt::format("\r\033[K{}{}", printable(text), p.finished ? "\n" : ""));
  } else {
    say(stderr, "{}\n", text);
  }
  std::fflush(stderr);
}

}  // namespace gradual::lab
