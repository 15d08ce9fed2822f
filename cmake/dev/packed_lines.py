#!/usr/bin/env python3
"""Counts packed statements in each folder: statements joined by commas, declarations of several initialised names, and
chained assignments (a = b = c). Fails if a folder has more of any than cmake/dev/packed_lines.txt records. Prints rates
per 1,000 lines of code, too.

usage: packed_lines.py [--list FOLDER] [--write]     --list: the places; --write: records the figures where they fell
"""

import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RECORD = os.path.join(ROOT, "cmake", "dev", "packed_lines.txt")
ENDINGS = (".cpp", ".h", ".cu", ".cuh", ".js")
FOLDERS = ("core", "autograd", "nn", "optim", "amp", "data", "cuda", "inspect", "dist", "pt2", "lab", "examples",
           "tests", "bench")
KINDS = ("commas", "names", "chains")

# Comments, strings, preprocessor lines, and at last the regular expressions of JavaScript.
NOT_CODE = re.compile(r"""//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|R"(\w+)\((?:.*?)\)\1"|"(?:\\.|[^"\\\n])*"|"""
                      r"""`(?:\\.|[^`\\])*`"""
                      r"""|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])*'|^[ \t]*\#(?:[^\n\\]|\\.|\\\n)*"""
                      r"""|(?:(?<=[=(,:] )|(?<=\())/(?:\\.|\[[^\]\n]*\]|[^/\n\\])+/""", re.S | re.M)
TOKEN = re.compile(r"[A-Za-z_$][\w$]*|[0-9][\w.']*|[=!]==|->|=>|::|[-+*/%&|^<>=!]=|&&|\|\||\+\+|--|[^\s]")
BEFORE_BLOCK = {")", "else", "do", "try", "const", "noexcept", "override", "final", "mutable", ";", "{", "}", "=>", ""}
CONTROLS = {"if", "for", "while", "switch", "else"}
HEADS = {"namespace", "struct", "class", "enum", "union", "extern"}
ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^="}
TYPE_WORDS = {"const", "static", "constexpr", "inline", "thread_local", "mutable", "volatile", "auto", "let", "var"}
NO_DECLARATION = {"return", "throw", "delete", "else", "using", "typedef", "friend", "goto", "case", "co_return"}


def without_comments(text):
    """The same lines with comments, preprocessor lines and the inside of strings blank."""
    def blank(match):
        kept = "\n" * match.group().count("\n")
        comment = match.group().lstrip()[:2] in ("//", "/*") or match.group().lstrip()[:1] == "#"
        return ("" if comment else '""') + kept
    return NOT_CODE.sub(blank, text)


def statements(text):
    """(line, tokens) of each statement that a semicolon ends, and of the head of each block that a control word begins;
    blocks inside, such as lambdas' bodies, are left out."""
    stack, tokens, depth, line, at = [], [], 0, 1, 0
    for match in TOKEN.finditer(text):
        token = match.group()
        line += text.count("\n", at, match.start())
        at = match.start()
        before = tokens[-1][0] if tokens else ""
        if token == "{":
            block = opens_block(before, [t for t, _ in tokens], depth)
            stack.append((block, tokens, depth))
            if block:
                if tokens and tokens[0][0] in CONTROLS:
                    yield tokens[0][1], [t for t, _ in tokens]
                tokens, depth = [], 0
            else:
                tokens.append((token, line))
                depth += 1
        elif token == "}" and stack:
            block, outer, outer_depth = stack.pop()
            if block:
                in_expression = outer_depth > 0 or is_lambda([t for t, _ in outer])
                tokens, depth = (outer + [("{}", line)], outer_depth) if in_expression else ([], 0)
            else:
                tokens.append((token, line))
                depth -= 1
        elif token == ";" and depth == 0:
            if tokens:
                yield tokens[0][1], [t for t, _ in tokens]
            tokens = []
        else:
            depth += (token in "([") - (token in ")]")
            tokens.append((token, line))


def is_lambda(tokens):
    """Whether the last parameter list, or the end, follows a capture list."""
    if tokens and tokens[-1] in ("]", "=>"):
        return True
    level = 0
    for k in range(len(tokens) - 1, -1, -1):
        level += (tokens[k] == ")") - (tokens[k] == "(")
        if level == 0 and tokens[k] == "(":
            return k > 0 and (tokens[k - 1] == "]" or tokens[k - 1] == ">" and "]" in tokens[:k])
    return False


def without_template_head(tokens):
    """What follows template <..>."""
    while tokens[:2] == ["template", "<"]:
        level, k = 0, 1
        for k in range(1, len(tokens)):
            level += (tokens[k] == "<") - (tokens[k] == ">")
            if level == 0:
                break
        tokens = tokens[k + 1:]
    return tokens


def opens_block(before, tokens, depth):
    tokens = without_template_head(tokens)
    if is_lambda(tokens) or before in BEFORE_BLOCK and depth == 0:
        return True
    if depth == 0 and tokens and any(t in HEADS for t in tokens[:4]) and "=" not in tokens:
        return True
    return depth == 0 and "->" in tokens and "=" not in tokens  # a trailing return type


def without_control(tokens):
    """The statement below if (..), for (..), while (..), else, labels and attributes."""
    while tokens:
        if tokens[0] == "alignas":
            tokens = tokens[tokens.index(")") + 1:]
        elif tokens[0] in CONTROLS and "(" in tokens[:3] and tokens[0] != "else":
            level, k = 0, tokens.index("(")
            for k in range(k, len(tokens)):
                level += (tokens[k] == "(") - (tokens[k] == ")")
                if level == 0:
                    break
            tokens = tokens[k + 1:]
        elif tokens[0] in ("else", "do"):
            tokens = tokens[1:]
        elif tokens[0] in ("public", "private", "protected", "default") and tokens[1:2] == [":"]:
            tokens = tokens[2:]
        elif tokens[0] == "case" and ":" in tokens:
            tokens = tokens[tokens.index(":") + 1:]
        else:
            return tokens
    return tokens


def without_template_arguments(tokens):
    text = " " + " ".join(tokens) + " "
    while True:
        shorter = re.sub(r"(\b[A-Za-z_]\w*) < (?:(?:[\w:&*,.+\-\[\] ]|\( [\w:&*,. ]*\) )*?)> ", r"\1 ", text)
        if shorter == text:
            return text.split()
        text = shorter


def parts(tokens):
    """The tokens between commas outside of brackets."""
    found, level = [[]], 0
    for token in tokens:
        level += (token in "([{" and token != "{}") - (token in ")]}" and token != "{}")
        if token == "," and level == 0:
            found.append([])
        else:
            found[-1].append(token)
    return found


def declares(part):
    """Whether the first part of a statement declares a name: words of a type, then a name, then its initialiser."""
    if not part or part[0] in NO_DECLARATION:
        return False
    if part[0] in TYPE_WORDS:
        return True
    words = []
    for token in part:
        if token in ("::", "*", "&", "&&", "const"):
            words.append(token)
        elif re.fullmatch(r"[A-Za-z_]\w*", token):
            if words[-1:] == ["::"]:
                words.pop()
            else:
                words.append("name")
        else:
            break
    if words[-1:] != ["name"] or words.count("name") < 2:
        return False
    return "=" in part or part[-1] == "}" or not any(w in ("*", "&", "&&") for w in words)  # a * b declares nothing


def initialised(part):
    """By =, by {..} or by (..)."""
    return "=" in part or part[-1:] in (["}"], [")"])


def chained(tokens):
    """Whether an assignment is the right side of another one, in brackets too."""
    levels, before = [0], ""
    for token in without_template_head(tokens):
        if token in "([{" and token != "{}":
            levels.append(0)
        elif token in ")]}" and token != "{}" and len(levels) > 1:
            levels.pop()
        elif token in (",", ";", "=>"):
            levels[-1] = 0
        elif token in ASSIGNMENTS and before != "operator":
            levels[-1] += 1
            if levels[-1] > 1:
                return True
        before = token
    return False


def packed(text):
    """(kind, line) of each packed statement; kind: one of KINDS."""
    for line, tokens in statements(without_comments(text)):
        if chained(tokens):
            yield "chains", line
        tokens = without_template_arguments(without_control(tokens))
        if not tokens or tokens[0] in ("using", "template", "friend", "typedef", "enum") or "operator" in tokens:
            continue
        if "< < <" in " ".join(tokens):  # the launch of a kernel
            continue
        pieces = parts(tokens)
        if len(pieces) < 2 or not all(pieces):
            continue
        if declares(pieces[0]):
            if sum(initialised(p) for p in pieces) > 1:
                yield "names", line
        else:
            yield "commas", line


def code_lines(text):
    return sum(1 for row in text.splitlines() if row.strip() and not row.strip().startswith("//"))


def files(folder):
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard", folder]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted(f for f in set(listed) if f.endswith(ENDINGS) and os.path.exists(os.path.join(ROOT, f)))


def count(folder, show=False):
    """The lines of code, and how many packed statements of each kind."""
    lines, found = 0, dict.fromkeys(KINDS, 0)
    for name in files(folder):
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            text = file.read()
        lines += code_lines(text)
        for kind, line in packed(text):
            found[kind] += 1
            if show:
                print(f"{name}:{line}: {kind}")
    return lines, found


def recorded():
    with open(RECORD, encoding="utf-8") as file:
        rows = [row.split() for row in file if row.strip() and not row.startswith("#")]
    return {folder: dict(zip(KINDS, map(int, counts))) for folder, *counts in rows}


def write(found):
    with open(RECORD, "w", encoding="utf-8") as file:
        file.write("# How many packed statements a folder may have: joined by commas, several initialised names, "
                   "chained assignments.\n"
                   "# packed_lines.py fails above these, and --write lowers them. They do not rise.\n")
        for folder, counts in found.items():
            file.write(f"{folder} {' '.join(str(counts[kind]) for kind in KINDS)}\n")


def main():
    arguments = sys.argv[1:]
    if arguments[:1] == ["--list"] and len(arguments) == 2:
        count(arguments[1], show=True)
        return 0
    if arguments not in ([], ["--write"]):
        sys.exit(__doc__.strip())
    most = recorded()
    found = {}
    more = []
    print(f"{'packed statements':<20}" + "".join(f"{kind:>10}{'per 1,000':>10}" for kind in KINDS))
    for folder in FOLDERS:
        most.setdefault(folder, dict.fromkeys(KINDS, 0))  # a new folder has none
        lines, counts = count(folder)
        cells = "".join(f"{counts[kind]:>10}{1000 * counts[kind] / lines:>10.1f}" for kind in KINDS)
        print(f"{folder:<20}{cells}")
        more += [f"{folder}: {counts[kind]} {kind}, at most {most[folder][kind]} (packed_lines.py --list {folder})"
                 for kind in KINDS if counts[kind] > most[folder][kind]]
        found[folder] = {kind: min(counts[kind], most[folder][kind]) for kind in KINDS}
    if arguments == ["--write"]:
        write(found)
    for line in more:
        print(f"MORE THAN RECORDED: {line}")
    return 1 if more else 0


if __name__ == "__main__":
    sys.exit(main())
