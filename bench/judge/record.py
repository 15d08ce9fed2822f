"""Records one step of a PyTorch model for `gradual-lab judge` (docs/judge.md)."""

import collections

import torch
from safetensors.torch import save_file
from torch.utils._pytree import tree_leaves


def record_step(model, args, loss_of, path):
    """Runs loss_of(model(*args)).backward() and writes what each module received and returned, and the gradients."""
    kept, calls = {}, collections.Counter()

    def keep(name, tensors):
        for i, t in enumerate(t for t in tree_leaves(tensors) if isinstance(t, torch.Tensor)):
            kept[name.format(i)] = t.detach().clone()
            if t.requires_grad:
                t.register_hook(lambda g, n=name.format(f"{i}.grad"): kept.update({n: g.detach().clone()}))

    def before(module, args, kwargs, path):
        calls[path] += 1
        keep("in.{}:" + call(path), (args, kwargs))

    def call(path):
        return path if calls[path] == 1 else f"{path}@{calls[path] - 1}"

    hooks = []
    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(lambda m, a, k, n=name: before(m, a, k, n), with_kwargs=True))
        hooks.append(module.register_forward_hook(lambda m, a, y, n=name: keep("out.{}:" + call(n), y)))
    state = {"before:" + n: t.detach().clone() for n, t in model.state_dict().items()}
    loss_of(model(*args)).backward()
    for hook in hooks:
        hook.remove()
    kept |= {"grad:" + n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    kept |= {"after:" + n: b.detach() for n, b in model.named_buffers()}
    save_file({n: t.cpu().contiguous().clone() for n, t in (state | kept).items()}, path)
