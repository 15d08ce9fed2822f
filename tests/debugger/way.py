# In gdb: follows docs/a-training-step.md. The page links functions as [`function`](../file). The program enters each of
# them after the one before it, and it is defined in that file.
import os.path
import re

import gdb

page = open(gdb.convenience_variable("page").string()).read()
links = re.findall(r"\[`([^`]+)`\]\(\.\./([^)#]+)\)", page)
way = [(name, file) for name, file in links if name != file]


def entered(name, file):
    """Runs on to the next call of the function; what is wrong, or an empty text."""
    try:
        # gdb compares the end of a path as the compiler was given it, which may hold "..": the file's name is enough
        stop = gdb.Breakpoint(source=os.path.basename(file), function=name)
    except gdb.error as error:
        return str(error)
    gdb.execute("continue" if gdb.selected_inferior().pid else "run", to_string=True)
    running = gdb.selected_inferior().pid != 0
    hit = running and stop.hit_count > 0
    found = os.path.normpath(gdb.newest_frame().find_sal().symtab.fullname()) if hit else ""
    stop.delete()
    if not hit:
        return "not entered after the function before it"
    return "" if found.endswith("/" + file) else "defined in " + found


missed = 0
for name, file in way:
    problem = entered(name, file)
    if problem:
        print("%s in %s: %s" % (name, file, problem))
        missed += 1
        if not gdb.selected_inferior().pid:
            break
if not missed and len(way) > 20:
    print("the page's way is the program's: %d functions" % len(way))
