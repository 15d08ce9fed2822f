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

ProgressBar::ProgressBar(bool quiet, const std::vector<amp::Recipe>& recipes)
    : quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1) {
  for (const amp::Recipe& r : recipes) width_ = std::max(width_, r.name.size());
}

std::string ProgressBar::line(const Progress& p) const {
  const double done = p.steps > 0 ? static_cast<double>(p.step) / static_cast<double>(p.steps) : 1;
  const double seconds = std::chrono::duration<double>(Clock::now() - run_started_).count();
  constexpr int kWidth = 20;
  const int full = static_cast<int>(done * kWidth);
  std::string text = fmt::format("[{:>2}/{}] {:<{}} seed {} ", p.run + 1, p.runs, p.recipe.name, width_, p.seed);
  text += "[" + std::string(static_cast<std::size_t>(full), '#') +
          std::string(static_cast<std::size_t>(kWidth - full), '.') + "]";
  text += fmt::format(" epoch {:>2} loss {:<7.4f}", p.epoch + (p.finished ? 0 : 1), p.loss);
  if (p.accuracy >= 0) text += fmt::format(" acc {:5.2f}%", 100 * p.accuracy);
  if (p.scale != 1) text += fmt::format(" scale 2^{:.4g}", std::log2(p.scale));
  if (p.skipped > 0) text += fmt::format(" skipped {}", p.skipped);
  return text + fmt::format(" {:.0f} s", seconds);
}

void ProgressBar::operator()(const Progress& p) {
  if (quiet_) return;
  const auto now = Clock::now();
  if (p.run != run_) {
    run_ = p.run;
    run_started_ = now;
    drawn_ = {};
  }
  if (!p.finished && (!terminal_ || now - drawn_ < std::chrono::milliseconds(80))) return;
  drawn_ = now;
  std::string text = line(p);
  if (terminal_) {
    winsize size{};
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 8 && text.size() >= size.ws_col)
      text.resize(size.ws_col - 1);
    say(stderr, "\r\033[K{}{}", text, p.finished ? "\n" : "");
  } else {
    say(stderr, "{}\n", text);
  }
  std::fflush(stderr);
}

}  // namespace gradual::lab
