"""Other names for the modules of a candidate, as another code base has them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn


def rename(model: nn.Module, table: Mapping[str, str]) -> dict[str, str]:
    """Register modules under other names, part by part of their paths; gives {new path: old path}.

    The code of a module still finds its children: the old names stay as plain attributes.
    """
    for module in list(model.modules()):
        children = dict(module._modules)
        if not any(name in table for name in children):
            continue
        module._modules.clear()
        for name, child in children.items():
            new = table.get(name, name)
            module._modules[new] = child
            if new != name:
                object.__setattr__(module, name, child)
    back = {new: old for old, new in table.items()}
    return {
        path: ".".join(back.get(part, part) for part in path.split(".")) for path, _ in model.named_modules() if path
    }
