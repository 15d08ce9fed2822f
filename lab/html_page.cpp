#include "html_page.h"

#include <cstddef>

namespace gradual::embedded {
extern const unsigned char report_css[];
extern const unsigned char plot_js[];
}  // namespace gradual::embedded

namespace gradual::lab {
namespace {

std::string text_of(const unsigned char* bytes) { return reinterpret_cast<const char*>(bytes); }

void replace(std::string& text, const std::string& mark, const std::string& by) {
  text.replace(text.find(mark), mark.size(), by);
}

}  // namespace

std::string html_page(const unsigned char* frame, const unsigned char* script, std::string json) {
  // "<" occurs only in strings, where HTML would interpret "</script" and "<!--"
  for (std::size_t at = 0; (at = json.find('<', at)) != std::string::npos; at += 6) json.replace(at, 1, "\\u003c");
  std::string html = text_of(frame);
  replace(html, "@CSS@", text_of(embedded::report_css));
  replace(html, "@JS@", text_of(embedded::plot_js) + text_of(script));
  replace(html, "@DATA@", json);
  return html;
}

}  // namespace gradual::lab
