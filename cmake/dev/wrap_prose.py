#!/usr/bin/env python3
"""Wraps the prose of pages at 120 columns.

wrap_prose.py FILE..          rewrites paragraphs and list items that have a longer line
wrap_prose.py --check FILE..  names these lines instead; the status is 1 if there are some

Tables, code, headings and what the library generates stay as they are.
"""
import re
import sys
import textwrap

WIDTH = 120
BULLET = re.compile(r"^(\s*)([-*] |\d+\. )")


def is_prose(line):
    return bool(line.strip()) and not line.lstrip().startswith(("|", "#", "<", "```"))


def paragraphs(lines):
    """(begin, end) of each paragraph or list item outside of code, tables and generated parts."""
    fenced = False
    generated = False
    listed = False  # an indented line continues a list item; elsewhere it is code
    begin = None
    found = []
    for at, line in enumerate(lines + [""]):
        fence = line.lstrip().startswith("```")
        generated = (generated or "<!-- generated" in line) and "<!-- end" not in line
        bullet = BULLET.match(line)
        code = line.startswith("    ") and not bullet and (begin is None if listed else True)
        skipped = fenced or fence or generated or code or not is_prose(line)
        if begin is not None and (skipped or bullet):
            found.append((begin, at))
            begin = None
        if not skipped and begin is None:
            begin = at
        if line.strip() and not line.startswith(" "):
            listed = bool(bullet)
        fenced ^= fence
    return found


def wrapped(lines):
    first = lines[0]
    bullet = BULLET.match(first)
    indent = " " * (len(bullet.group(0)) if bullet else len(first) - len(first.lstrip()))
    begin = bullet.group(0) if bullet else indent
    text = " ".join(line.strip() for line in [first[len(begin):]] + lines[1:])
    return textwrap.wrap(text, WIDTH, initial_indent=begin, subsequent_indent=indent, break_long_words=False,
                         break_on_hyphens=False)


def main(arguments):
    check = arguments[:1] == ["--check"]
    too_long = 0
    for file in arguments[check:]:
        with open(file, encoding="utf-8") as page:
            lines = page.read().split("\n")
        for begin, end in reversed(paragraphs(lines)):
            long = [at for at in range(begin, end) if len(lines[at]) > WIDTH and " " in lines[at].strip()]
            new = wrapped(lines[begin:end]) if long else []
            if not long or new == lines[begin:end]:
                continue
            too_long += len(long)
            if check:
                print(*(f"{file}:{at + 1}: {len(lines[at])} columns" for at in long), sep="\n")
            else:
                lines[begin:end] = new
        if not check:
            with open(file, "w", encoding="utf-8") as page:
                page.write("\n".join(lines))
    return 1 if check and too_long else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
