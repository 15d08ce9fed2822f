# In gdb: the printers' names of formats are those of the library.
import gdb


class Named(gdb.Breakpoint):
    same = 0

    def stop(self):
        frame = gdb.newest_frame()
        shown, wanted = frame.read_var("format").referenced_value().format_string(), frame.read_var("name").string()
        if shown == wanted:
            Named.same += 1
        else:
            print("differs: %s, expected %s" % (shown, wanted))
        return False


def ended(_):
    print("same names: %d" % Named.same)


Named("named")
gdb.events.exited.connect(ended)
