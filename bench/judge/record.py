"""Records one step of a PyTorch model for `gradual-lab judge` (docs/judge.md)."""

import collections

import torch
from safetensors.torch import save_file
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

# What exported graphs call a function of torch, where that is another name.
NAMES = {"truediv": "div", "rtruediv": "div", "radd": "add", "rmul": "mul", "iadd": "add", "imul": "mul",
         "cross_entropy": "cross_entropy_loss"}


class Recorder(TorchFunctionMode):
    """Keeps tensors, their gradients, and the results of the functions that a module's own forward calls."""

    def __init__(self):
        super().__init__()
        self.kept, self.calls, self.running = {}, collections.Counter(), []

    def keep(self, name, tensors):
        with torch._C.DisableTorchFunction():  # these calls are not the model's
            for i, t in enumerate(t for t in tree_leaves(tensors) if isinstance(t, torch.Tensor)):
                self.kept[name.format(i)] = t.detach().clone()
                if t.requires_grad:
                    t.register_hook(lambda g, n=name.format(f"{i}.grad"): self.kept.update({n: g.detach().clone()}))

    def count(self, name):
        self.calls[name] += 1
        return name if self.calls[name] == 1 else f"{name}@{self.calls[name] - 1}"

    def before(self, module, path, tensors):
        own = not type(module).__module__.startswith("torch.nn.")
        self.running.append((self.count(path), own))
        self.keep("in.{}:" + self.running[-1][0], tensors)

    def behind(self, tensors):
        self.keep("out.{}:" + self.running.pop()[0], tensors)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "").strip("_")
        if self.running and self.running[-1][1] and isinstance(result, torch.Tensor) and name not in ("get", "set"):
            self.keep("op.{}:" + self.count(f"{self.running[-1][0]}/{NAMES.get(name, name)}"), result)
        return result


def record_step(model, args, loss_of, path):
    """Runs loss_of(model(*args)).backward() and writes what each module received and returned, and the gradients."""
    recorder, hooks = Recorder(), []
    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(
            lambda m, a, k, n=name: recorder.before(m, n, (a, k)), with_kwargs=True))
        hooks.append(module.register_forward_hook(lambda m, a, y: recorder.behind(y)))
    state = {"before:" + n: t.detach().clone() for n, t in model.state_dict().items()}
    with recorder:
        y = model(*args)
    loss_of(y).backward()
    for hook in hooks:
        hook.remove()
    kept = state | recorder.kept
    kept |= {"grad:" + n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    kept |= {"after:" + n: b.detach() for n, b in model.named_buffers()}
    save_file({n: t.cpu().contiguous().clone() for n, t in kept.items()}, path)
