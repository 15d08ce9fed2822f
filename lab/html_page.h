// The lab's pages: a frame of HTML that contains its style, its scripts and its data, so that it opens from a file.
#pragma once

#include <string>

namespace gradual::lab {

// A page's own frame, with @CSS@, @JS@ and @DATA@ in it, and its own script: embedded texts (cmake/embed.cmake). All
// pages share report.css and plot.js. `json`: the data of the script.
std::string html_page(const unsigned char* frame, const unsigned char* script, std::string json);

}  // namespace gradual::lab
