"""A traced run: the prompt, then token by token; the tokens are the model's own choice, or given."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..bars import Advance
from ..errors import CaptureError
from .engines import Engine
from .recording import Recording, Selection
from .taps import Taps


def run(
    engine: Engine,
    recording: Recording,
    selection: Selection,
    prompt: Sequence[int],
    *,
    steps: int = 1,
    given: Sequence[int] = (),
    advance: Advance = lambda count: None,
) -> tuple[int | None, ...]:
    """Feed a prompt and then one token a step, recording what is selected; the cache carries over.

    Returns the likeliest token after every step, the first of equals, None where logits are NaN. It is fed next,
    unless `given` has another, so that two engines can be led along the same text. `advance` is told of every tensor.
    """

    def see(stage: str, layer: int, tensor: Tensor) -> None:
        recording.see(stage, layer, tensor)
        advance(1)

    taps = Taps(selection.wants, see)
    feed = list(prompt)
    chosen: list[int | None] = []
    for step in range(steps):
        recording.begin(step, feed)
        logits = engine.forward(torch.tensor([feed]), taps)[0, -1]
        chosen.append(None if bool(logits.isnan().any()) else int(logits.argmax()))
        if step + 1 == steps:
            break
        following = given[step] if given else chosen[-1]
        if following is None:
            raise CaptureError(
                f"step {step}: its logits have NaN, so that no token is the likeliest; trace it alone, or give tokens "
                "(--teacher)"
            )
        feed = [following]
    return tuple(chosen)
