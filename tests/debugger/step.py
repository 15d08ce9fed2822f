# In gdb, with skips.gdb: steps from the call of a layer to its kernel and lists the functions on the way. None of them
# is of the standard library, and the layer, the op, dispatch, autograd and the kernel come in this order.
import re

import gdb

WAY = ["Net::forward", "nn::Module::operator()", "nn::Linear::forward", "gradual::linear", "dispatch1", "dispatch",
       "Autograd::call", "next_below_observe", "cpu::(anonymous namespace)::product"]


def function():
    return gdb.newest_frame().name() or "no name"


gdb.execute("break Net::forward", to_string=True)
gdb.execute("run", to_string=True)
entered, steps = [function()], 0
while steps < 100 and WAY[-1] not in entered[-1]:
    gdb.execute("step", to_string=True)
    steps += 1
    if function() != entered[-1]:
        entered.append(function())
for name in entered:
    print("  " + name)
foreign = [name for name in entered if re.match(r"(std|__gnu_cxx|fmt|Eigen)::|.* std::", name)]
rest = iter(entered)
missed = [part for part in WAY if not any(part in name for name in rest)]
if foreign or missed:
    print("foreign: %s, not entered in order: %s" % (foreign, missed))
else:
    print("from the layer to its kernel in %d steps" % steps)
