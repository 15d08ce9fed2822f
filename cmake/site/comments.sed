# The project's comments (//) as Doxygen's. An indented line is code. Other text is plain: what Doxygen or HTML would take
# for a command is escaped. Functions that are friends have no page of their own: they stay with their class.
/^ *\/\/ {3,}/{
  s|^( *)//|\1///    |
  b
}
/^ *\/\//{
  s/[\\@#<>&%"|]/\\&/g
  s/ [.][.]([ ,)]|$)/ …\1/g
  s|^( *)//($\|[^/])|\1///\2|
}
s|([;,{(] +)// |\1///< |
s/^( *)friend (class|struct) .*$//
s/^( *)friend /\1static /
s|^#pragma once$|/// @file|
