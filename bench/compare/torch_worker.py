"""The worker of the PyTorch in this interpreter. worker.h has the requests, gradual_models.cpp and gradual_ops.cpp the
models and ops that this builds once more, in PyTorch's own terms: eager, its defaults, the variants as asked."""

import json
import math
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cpu"  # new tensors and modules are made there
MASK = 0xFFFFFFFF
STREAMS = {"inputs": 0, "classes": 1, "tokens": 2}


# --- data: synthetic.h's ----------------------------------------------------------------------------------------------


def hashed(stream, count):
    h = torch.arange(count, dtype=torch.int64) + (STREAMS[stream] << 28)
    h = (h * 2654435761) & MASK
    h ^= h >> 15
    h = (h * 2246822519) & MASK
    return h ^ (h >> 13)


def numbers(count):
    return ((hashed("inputs", count).double() / 2147483648.0 - 1) * 1.7320508).float()


# --- models -----------------------------------------------------------------------------------------------------------


def mlp(widths):
    layers = []
    for i, (a, b) in enumerate(zip(widths, widths[1:])):
        layers += [nn.ReLU()] * (i > 0) + [nn.Linear(a, b)]
    return nn.Sequential(*layers)


def cnn(image, classes):
    channels, height, width = image
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * (height // 4) * (width // 4), classes))


class ResidualBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = None
        if inputs != outputs or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return F.relu(self.body(x) + (x if self.shortcut is None else self.shortcut(x)))


def resnet(channels, widths, blocks, classes):
    layers = [nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()]
    inputs = widths[0]
    for width in widths:
        for _ in range(blocks):
            layers.append(ResidualBlock(inputs, width, 1 if inputs == width else 2))
            inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class TransformerBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.in_proj = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, 4 * width)
        self.linear2 = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
                   for t in self.in_proj(self.norm1(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out_proj(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary, context, width, heads, layers):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        with torch.no_grad():
            self.tokens.weight.mul_(0.02)
            self.positions.weight.mul_(0.02)

    def forward(self, x):
        positions = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions(positions))))


def build(spec):
    kind = spec["kind"]
    if kind == "mlp":
        return mlp(spec["widths"])
    if kind == "cnn":
        return cnn(spec["input"], spec["classes"])
    if kind == "resnet":
        return resnet(spec["input"][0], spec["widths"], spec["blocks"], spec["classes"])
    if kind == "gpt":
        return Gpt(spec["classes"], spec["input"][0], spec["width"], spec["heads"], spec["layers"])
    raise ValueError(f"no model of kind '{kind}'")


def optimizer(o, params, fused):
    extra = {"fused": True} if fused else {}
    if o["kind"] == "adamw":
        return torch.optim.AdamW(params, lr=o["lr"], weight_decay=o["weight_decay"], **extra)
    return torch.optim.SGD(params, lr=o["lr"], momentum=o["momentum"], weight_decay=o["weight_decay"], **extra)


class Training:
    def __init__(self, spec):
        self.model = build(spec)
        self.autocast = {"bf16": torch.bfloat16, "f16": torch.float16}.get(spec["precision"])
        self.scaler = torch.amp.GradScaler(DEVICE) if spec["precision"] == "f16" else None
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = spec["precision"] == "tf32"
        shape = [spec["batch"], *spec["input"]]
        count, classes = math.prod(shape), spec["classes"]
        tokens = spec["kind"] == "gpt"
        data = hashed("tokens", count) % classes if tokens else numbers(count)
        self.data = data.double().sum().item()
        self.x = data.view(shape)
        self.y = hashed("classes", count if tokens else spec["batch"]) % classes
        variant = spec.get("variant", [])
        unknown = set(variant) - {"channels_last", "fused", "compile"}
        if unknown:
            raise ValueError(f"no variant {sorted(unknown)} here")
        if "channels_last" in variant:
            self.x = self.x.contiguous(memory_format=torch.channels_last)
            self.model = self.model.to(memory_format=torch.channels_last)
        self.optimizer = optimizer(spec["optimizer"], self.model.parameters(), "fused" in variant)
        if "compile" in variant:
            self.model = torch.compile(self.model)

    def forward(self):
        logits = self.model(self.x)
        return F.cross_entropy(logits if logits.dim() == 2 else logits.view(-1, logits.shape[-1]), self.y)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype=self.autocast, enabled=self.autocast is not None):
            loss = self.forward()
        if self.scaler:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()
        self.last = loss.detach()

    def loss(self):
        return self.last.item()

    def facts(self):
        return {"parameters": sum(p.numel() for p in self.model.parameters()), "data": self.data}


# --- ops --------------------------------------------------------------------------------------------------------------

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def forward_only(f):
    def step():
        with torch.no_grad():
            f()
    return step


def matmul_step(s, dtype):
    a, b = torch.randn(s[0], s[1]).to(dtype), torch.randn(s[1], s[2]).to(dtype)
    return forward_only(lambda: torch.matmul(a, b))


def linear_step(s, dtype):
    x, w, b = torch.randn(s[0], s[1]).to(dtype), torch.randn(s[2], s[1]).to(dtype), torch.randn(s[2]).to(dtype)
    return forward_only(lambda: F.linear(x, w, b))


def conv2d_step(s, dtype):
    x = torch.randn(s[0], s[1], s[3], s[3]).to(dtype).requires_grad_()
    w = torch.randn(s[2], s[1], 3, 3).to(dtype).requires_grad_()
    g = torch.randn(s[0], s[2], s[3], s[3]).to(dtype)

    def step():
        x.grad = w.grad = None
        F.conv2d(x, w, padding=1).backward(g)
    return step


def cast_step(s, dtype):
    x, y = torch.randn(s[0]), torch.empty(s[0], dtype=dtype)
    return forward_only(lambda: y.copy_(x))


def softmax_step(s, dtype):
    x = torch.randn(s[0], s[1]).to(dtype)
    return forward_only(lambda: torch.softmax(x, -1))


def layer_norm_step(s, dtype):
    x, w, b = torch.randn(s[0], s[1]).to(dtype), torch.randn(s[1]), torch.randn(s[1])
    return forward_only(lambda: F.layer_norm(x, (s[1],), w, b))


def backward_of(f, leaves, g):
    def step():
        for leaf in leaves:
            leaf.grad = None
        f().backward(g)
    return step


def batch_norm_step(s, dtype):
    x = torch.randn(s).to(dtype).requires_grad_()
    w, b = torch.randn(s[1]).requires_grad_(), torch.randn(s[1]).requires_grad_()
    return backward_of(lambda: F.batch_norm(x, None, None, w, b, True), (x, w, b), torch.randn(s).to(dtype))


def avg_pool2d_step(s, dtype):
    x = torch.randn(s).to(dtype).requires_grad_()
    return backward_of(lambda: F.avg_pool2d(x, 2), (x,), torch.randn(s[0], s[1], s[2] // 2, s[3] // 2).to(dtype))


def attention_step(s, dtype):
    q, k, v = (torch.randn(s).to(dtype).requires_grad_() for _ in range(3))
    return backward_of(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v),
                       torch.randn(s).to(dtype))


def adamw_step(s, dtype):
    """There are no masters in torch: the step is AdamW's on f32 copies, with the conversions that go around it."""
    shape = (s[1], s[2])
    params = [torch.randn(shape).to(dtype) for _ in range(s[0])]
    gradients = [torch.randn(shape).to(dtype) for _ in params]
    masters = [p.float().requires_grad_() for p in params]
    for m in masters:
        m.grad = torch.empty(shape)
    adamw = torch.optim.AdamW(masters, lr=1e-3, fused=True)

    def step():
        for m, g in zip(masters, gradients):
            m.grad.copy_(g)
        adamw.step()
        for p, m in zip(params, masters):
            p.copy_(m)
    return forward_only(step)


OPS = {"matmul": matmul_step, "linear": linear_step, "conv2d": conv2d_step, "cast": cast_step,
       "softmax": softmax_step, "layer_norm": layer_norm_step, "adamw": adamw_step, "batch_norm": batch_norm_step,
       "avg_pool2d": avg_pool2d_step, "attention": attention_step}


class Op:
    def __init__(self, spec):
        if spec["op"] not in OPS:
            raise ValueError(f"no op '{spec['op']}' here")
        self.step = OPS[spec["op"]](spec["sizes"], DTYPES[spec["dtype"]])

    def loss(self):
        return None

    def facts(self):
        return {}


# --- requests ---------------------------------------------------------------------------------------------------------


def process_bytes(field):
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith(field + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


class Session:
    job = None
    resident = None

    def hello(self, _):
        has_gpu = torch.cuda.is_available()
        return {"framework": "PyTorch", "version": torch.__version__,
                "variants": ["channels_last", "fused"] + ["compile"] * has_gpu,
                "gpu": torch.cuda.get_device_name() if has_gpu else None,
                "python": sys.version.split()[0], "config": torch.__config__.show()}

    def threads(self, request):
        torch.set_num_threads(request["count"])
        return {}

    def device(self, request):
        global DEVICE
        torch.empty(0, device=request["name"])  # an error where there is none
        DEVICE = request["name"]
        torch.set_default_device(DEVICE)
        return {}

    @staticmethod
    def finish():
        if DEVICE != "cpu":
            torch.cuda.synchronize()

    def make(self, kind, request):
        self.job = None
        if DEVICE != "cpu":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            with open("/proc/self/clear_refs", "w") as reset:
                reset.write("5")  # the high-water mark starts anew
            self.resident = process_bytes("VmRSS")
        except OSError:
            self.resident = None
        self.job = kind(request)
        return self.job.facts()

    def model(self, request):
        return self.make(Training, request)

    def op(self, request):
        return self.make(Op, request)

    def run(self, request):
        if self.job is None:
            raise RuntimeError("run: ask for a model or an op first")
        self.finish()
        cpu_start, start = time.process_time(), time.perf_counter()
        for _ in range(request["steps"]):
            self.job.step()
        self.finish()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
        loss = self.job.loss()
        return {"seconds": seconds, "cpu": cpu, "loss": loss if loss is not None and math.isfinite(loss) else None}

    def memory(self, _):
        high = process_bytes("VmHWM")
        known = high is not None and self.resident is not None
        return {"resident": high - self.resident if known else None,
                "allocator": None if DEVICE == "cpu" else torch.cuda.max_memory_allocated()}


def main():
    session = Session()
    answers = {name: getattr(session, name) for name in ("hello", "threads", "device", "model", "op", "run",
                                                       "memory")}
    for line in sys.stdin:
        try:
            request = json.loads(line)
            if request["do"] not in answers:
                raise ValueError(f"no request '{request['do']}'; there are {', '.join(answers)}")
            reply = answers[request["do"]](request)
        except Exception as problem:  # the worker goes on, the driver says what happened
            reply = {"error": f"{type(problem).__name__}: {problem}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
