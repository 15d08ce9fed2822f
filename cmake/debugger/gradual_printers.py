"""Shows Gradual's types in gdb and lldb: tensors with shape, dtype, device, first values and gradient; formats and
quantizers by name.

    source gradual_printers.py                  in gdb
    command script import gradual_printers.py   in lldb

The file only reads memory. It calls no function of the program, so it also works in a core dump.
"""
import math
import struct

FIRST = 8  # values of a tensor that are shown
MOST_DIMS = 8
# In the order of gradual::DType: the name, the bytes of an element, its format in the module struct. The three dtypes
# without a format are converted by decode().
DTYPES = [("f64", 8, "<d"), ("f32", 4, "<f"), ("f16", 2, "<e"), ("bf16", 2, ""), ("f8e4m3fn", 1, ""),
          ("f8e5m2", 1, ""), ("i64", 8, "<q"), ("i32", 4, "<i"), ("u8", 1, "<B"), ("bool", 1, "<?")]
# The fields of gradual::Format, and the names that do not follow from their widths (core/formats/format.cpp).
FORMAT_FIELDS = ["is_signed", "exponent_bits", "mantissa_bits", "bias", "has_inf", "nan", "has_negative_zero",
                 "subnormals", "has_zero"]
FORMATS = {(1, 8, 23, 127, 1, "ieee", 1, 1, 1): "fp32", (1, 8, 10, 127, 1, "ieee", 1, 1, 1): "tf32",
           (1, 8, 7, 127, 1, "ieee", 1, 1, 1): "bf16", (1, 5, 10, 15, 1, "ieee", 1, 1, 1): "fp16",
           (1, 4, 3, 7, 0, "all_ones", 1, 1, 1): "e4m3fn", (1, 4, 3, 8, 0, "negative_zero", 0, 1, 1): "e4m3fnuz",
           (1, 5, 2, 16, 0, "negative_zero", 0, 1, 1): "e5m2fnuz", (0, 8, 0, 127, 0, "all_ones", 0, 0, 0): "e8m0fnu",
           (1, 2, 3, 1, 0, "none", 1, 1, 1): "e2m3fn", (1, 3, 2, 3, 0, "none", 1, 1, 1): "e3m2fn",
           (1, 2, 1, 1, 0, "none", 1, 1, 1): "e2m1fn", (0, 4, 3, 7, 0, "all_ones", 0, 1, 1): "ue4m3",
           (0, 5, 3, 15, 0, "all_ones", 0, 1, 1): "ue5m3", (0, 6, 2, 48, 0, "all_ones", 0, 1, 1): "ue6m2"}
FIXED = {(1, 7, 0): "int8", (1, 3, 0): "int4", (0, 8, 0): "uint8", (0, 4, 0): "uint4", (1, 1, 6): "mxint8",
         (1, 1, 2): "msfp12"}  # by sign, integer bits and fraction bits
TAKEN = ["e2m1", "e2m3", "e3m2"]  # names of the OCP formats, not of IEEE forms

class Gdb:
    """What the functions below ask of gdb."""

    def __init__(self, value):
        self.value = value

    def field(self, *names):
        value = self.value
        for name in names:
            value = value[name]
        return Gdb(value)

    def optional(self, name):
        known = [field.name for field in self.value.type.strip_typedefs().fields()]
        return self.field(name) if name in known else None

    def type_name(self):
        return str(self.value.type.strip_typedefs()).split("::")[-1]

    def item(self, i):
        return Gdb(self.value[i])

    def number(self):
        return int(self.value)

    def real(self):
        return float(self.value)

    def name(self):
        return str(self.value).split("::")[-1]

    def text(self):
        return self.value["_M_dataplus"]["_M_p"].string()

    def cast(self, name):
        try:
            return Gdb(self.value.cast(gdb.lookup_type(name).pointer()))
        except gdb.error:
            return None

    def read(self, address, size):
        return bytes(gdb.selected_inferior().read_memory(address, size))


class Lldb:
    """The same of lldb."""

    def __init__(self, value):
        self.value = value

    def field(self, *names):
        value = self.value
        for name in names:
            value = value.GetChildMemberWithName(name)
            if not value.IsValid():
                raise ValueError("no field " + name)
        return Lldb(value)

    def optional(self, name):
        value = self.value.GetChildMemberWithName(name)
        return Lldb(value) if value.IsValid() else None

    def type_name(self):
        return self.value.GetTypeName().split("::")[-1]

    def item(self, i):
        return Lldb(self.value.GetChildAtIndex(i))

    def number(self):
        error = lldb.SBError()
        number = self.value.GetValueAsSigned(error)
        if error.Fail():
            raise ValueError(error.GetCString())
        return number

    def real(self):
        return float(self.value.GetValue())

    def name(self):
        return str(self.value.GetValue()).split("::")[-1]

    def text(self):
        return self.value.GetSummary().strip('"')

    def cast(self, name):
        found = self.value.GetTarget().FindFirstType(name)
        return Lldb(self.value.Cast(found.GetPointerType())) if found.IsValid() else None

    def read(self, address, size):
        error = lldb.SBError()
        data = self.value.GetProcess().ReadMemory(address & (1 << 64) - 1, size, error)
        if error.Fail():
            raise ValueError(error.GetCString())
        return data


def decode(dtype, data):
    """The text of an element from its bytes."""
    name, _, form = DTYPES[dtype]
    if name == "bf16":  # the upper half of a float
        value = struct.unpack("<f", b"\0\0" + data)[0]
    elif name == "f8e5m2":  # the upper half of an f16
        value = struct.unpack("<e", b"\0" + data)[0]
    elif name == "f8e4m3fn":
        exponent, mantissa = data[0] >> 3 & 15, data[0] & 7
        value = math.ldexp(mantissa + (8 if exponent else 0), max(exponent, 1) - 10)
        if data[0] & 127 == 127:
            value = math.nan
        value = -value if data[0] & 128 else value
    else:
        value = struct.unpack(form, data)[0]
    return format(value, ".6g") if isinstance(value, float) else str(value).lower()


def dims_of(shape):
    n = shape.field("n_").number()
    if not 0 <= n <= MOST_DIMS:
        raise ValueError("%d dims" % n)
    return [shape.field("d_").item(i).number() for i in range(n)]


def device_text(device):
    return "cpu" if device.field("type").name() == "cpu" else "cuda:%d" % device.field("index").number()


def values_text(tensor, sizes, dtype, storage):
    count = math.prod(sizes)
    if count == 0:
        return "{}"
    if device_text(storage.field("device")) != "cpu":
        return "{on the GPU}"
    strides, start = dims_of(tensor.field("strides")), tensor.field("offset").number()
    data, size = storage.field("data").number(), storage.field("bytes").number()
    width, shown = DTYPES[dtype][1], []
    for i in range(min(count, FIRST)):
        at, rest = start, i
        for length, stride in zip(reversed(sizes), reversed(strides)):
            at += rest % length * stride
            rest //= length
        if at < 0 or (at + 1) * width > size:
            raise ValueError("outside its storage")
        shown.append(decode(dtype, tensor.read(data + at * width, width)))
    return "{" + ", ".join(shown) + (", ..." if count > FIRST else "") + "}"


def gradient_text(tensor):
    meta = tensor.field("grad_meta")
    if meta.number() == 0:
        return ""
    meta = meta.cast("gradual::GradMeta")
    if meta is None:
        return ", known to autograd"  # the program has no debug information about autograd
    if not meta.field("requires_grad").number():
        return ""
    node = meta.field("edge", "node", "p_")
    if node.number() != 0 and node.field("op").name() != "leaf":
        return ", result of " + node.field("op").name()
    if meta.field("grad", "impl_", "p_").number() == 0:
        return ", requires grad, no gradient"
    return ", requires grad, gradient " + tensor_text(meta.field("grad")).removeprefix("Tensor ")


def tensor_text(value):
    tensor = value.field("impl_", "p_")
    if tensor.number() == 0:
        return "Tensor undefined"
    sizes, storage = dims_of(tensor.field("sizes")), tensor.field("storage", "p_")
    dtype = [d[0] for d in DTYPES].index(tensor.field("dtype").name().rstrip("_"))
    if any(n < 0 for n in sizes) or storage.number() == 0:
        raise ValueError("no storage")
    head = "Tensor %s %s %s " % (sizes, DTYPES[dtype][0], device_text(storage.field("device")))
    return head + values_text(tensor, sizes, dtype, storage) + gradient_text(tensor)


def format_text(value):
    if value.field("table").number() != 0:
        return value.field("table", "name").text()
    fields = tuple(value.field(f).name() if f == "nan" else value.field(f).number() for f in FORMAT_FIELDS)
    if fields in FORMATS:
        return FORMATS[fields]
    signed, x, m, bias, inf, nan, negative_zero, subnormals, zero = fields
    name = "e%dm%d" % (x, m)
    ieee = (1, x, m, (1 << max(x - 1, 0)) - 1, int(m > 0), "ieee" if m > 0 else "all_ones", 1, 1, 1)
    if fields == ieee and 1 <= x <= 8 and 0 <= m <= 23 and name not in TAKEN:
        return name
    if fields == (1, x, m, 1 << max(x - 1, 0), inf, "negative_zero", 0, 1, 1) and x + m == 7:
        return "binary8p%d%s" % (m + 1, "" if inf else "f")
    if fields == (signed, 1, m, bias, 0, "none", 0, 1, 1) and 0 <= 2 - bias <= m + 1:
        whole, fraction = 2 - bias, m - 1 + bias
        return FIXED.get((signed, whole, fraction), "%sq%d.%d" % ("" if signed else "u", whole, fraction))
    words = {"none": "no NaN", "ieee": "IEEE NaN", "all_ones": "NaN all ones", "negative_zero": "NaN at -0"}
    return "%s%s (bias %d, %s%s%s%s)" % ("" if signed else "unsigned ", name, bias, words.get(nan, nan),
                                         ", Inf" if inf else "", ", -0" if negative_zero else "",
                                         "" if subnormals else ", no subnormals")


def scaling_text(variant):
    """The kind that a std::variant holds, as libstdc++ stores it."""
    rest = variant.field("_M_u")
    for _ in range(variant.field("_M_index").number()):
        rest = rest.field("_M_rest")
    kind = rest.field("_M_first", "_M_storage")
    block = kind.optional("block")
    return kind.type_name() + (" of %d" % block.number() if block else "")


def quantizer_text(value):
    return "%s, rounding %s, scaling %s" % (format_text(value.field("format")),
                                            value.field("rounding", "mode").name(),
                                            scaling_text(value.field("scaling")))


def quantized_text(value):
    return "QuantizedTensor %s %s" % (dims_of(value.field("shape")), format_text(value.field("format")))


TYPES = {"Tensor": tensor_text, "Shape": lambda value: str(dims_of(value)), "Device": device_text,
         "Format": format_text, "Quantizer": quantizer_text, "QuantizedTensor": quantized_text}


def shown(name, value):
    try:
        return TYPES[name](value)
    except Exception as error:  # a variable whose constructor has not run yet, or memory that is gone
        return "%s not readable (%s)" % (name, str(error) or type(error).__name__)


try:
    import gdb
    import gdb.printing
except ImportError:
    gdb = None
try:
    import lldb
except ImportError:
    lldb = None


class Printer:
    def __init__(self, name, value):
        self.name, self.value = name, value

    def to_string(self):
        return shown(self.name, Gdb(self.value))


def printer_of(name):
    return lambda value: Printer(name, value)


if gdb:
    printers = gdb.printing.RegexpCollectionPrettyPrinter("gradual")
    for type_name in TYPES:
        printers.add_printer(type_name, "^gradual::%s$" % type_name, printer_of(type_name))
    gdb.printing.register_pretty_printer(gdb.current_objfile(), printers, replace=True)


def lldb_text(value, _):
    value = value.GetNonSyntheticValue()
    name = value.GetType().GetDereferencedType().GetName() if value.GetType().IsReferenceType() else value.GetTypeName()
    return shown(name.split("::")[-1], Lldb(value))


def __lldb_init_module(debugger, _):
    for name in TYPES:
        debugger.HandleCommand("type summary add --category gradual --python-function %s.lldb_text gradual::%s"
                               % (__name__, name))
    debugger.HandleCommand("type category enable gradual")
