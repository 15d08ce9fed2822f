# The project's comments (//) as Doxygen's. Their text is plain: what Doxygen or HTML would take for a command is escaped,
# and an indented line is code. Functions that are friends have no page of their own: they stay with their class.
/^ *\/\//{
  s/[\\@#<>&%"|]/\\&/g
  s/ [.][.]([ ,)]|$)/ …\1/g
  s|^( *)//( {3,})|\1///     \2|
  s|^( *)//($\|[^/])|\1///\2|
}
s|([;,{(] +)// |\1///< |
s/^( *)friend (class|struct) .*$//
s/^( *)friend /\1static /
s|^#pragma once$|/// @file|
