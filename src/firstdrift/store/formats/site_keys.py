"""Site names as single keys, for formats that hold one flat mapping of names to tensors.

A parameter keeps the name a checkpoint gives it (`layers.0.attn.q_proj.weight`); anything else is
`[stepNNN/]<name>.<phase>[.<port>][.cN][.sNNN]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...core.sites import PARAMETER_PHASES, PHASE_RANK, Site, check_site, default_port

# What other tools call these phases (the training-step traces of OnDeviceTraining).
PHASE_ALIASES = {"grad_raw": "grad", "w_before": "weight", "w_after": "weight_after"}
_MARKERS = {phase: phase for phase in PHASE_RANK if phase not in ("input", "weight", "loss")} | PHASE_ALIASES
_PARAMETERS = frozenset({"weight", "bias", "running_mean", "running_var", "num_batches_tracked", "gamma", "beta"})
_NAMESAKES = frozenset({"input", "loss"})  # phases whose sites bear the phase's name
_STEP = re.compile(r"step([0-9]{1,18})/(.*)", re.DOTALL)
_SAMPLE = re.compile(r"s([0-9]{1,18})")
_CALL = re.compile(r"c([0-9]{1,18})")


def keys_of(sites: Iterable[Site]) -> dict[Site, str]:
    """A key for every site; where two would share one, the later gets a number behind it.

    What `site_of` cannot read back from such a key, the carried index says.
    """
    taken: set[str] = {"", "__metadata__"}  # the latter is safetensors' own
    keys: dict[Site, str] = {}
    for site in sites:
        plain = key = key_of(site).replace("\0", "%00")  # zip archives cut a name at its first NUL
        number = 1
        while key in taken:
            number += 1
            key = f"{plain}~{number}"
        taken.add(key)
        keys[site] = key
    return keys


def key_of(site: Site) -> str:
    """The key a site would have if it were alone."""
    step, phase, name, port, call, sample = site
    prefix = f"step{step:03d}/" if step else ""
    if phase == "weight" and call == 0 and sample is None:
        return f"{prefix}{name}.{port}" if name else f"{prefix}{port}"
    key = f"{prefix}{name}" if name == phase and phase in _NAMESAKES else f"{prefix}{name}.{phase}"
    if says_port(phase, port):
        key += f".{port}"
    return key + (f".c{call}" if call else "") + ("" if sample is None else f".s{sample:03d}")


def says_port(phase: str, port: str) -> bool:
    """Whether a name has to spell the port out: it is not the default, or there is none (optimizer state)."""
    return phase == "optim" or port != default_port(phase)


def site_of(key: str, *, otherwise: str) -> Site:
    """The site a key of unknown origin means; `otherwise` is the phase of keys that do not say one."""
    step, rest = 0, key
    if match := _STEP.fullmatch(key):
        step, rest = int(match[1]), match[2]
    if otherwise in PARAMETER_PHASES:  # a checkpoint: a module may well be called `input` or `grad`
        name, _, port = rest.rpartition(".")
        return check_site(Site(step, otherwise, name, port))
    parts = rest.split(".")
    marker = next((i for i in range(len(parts) - 1, 0, -1) if parts[i] in _MARKERS), None)
    if marker is not None:
        phase = _MARKERS[parts[marker]]
        port, call, sample = _tail(parts[marker + 1 :], phase)
        return check_site(Site(step, phase, ".".join(parts[:marker]), port, call, sample))
    if parts[0] in _NAMESAKES:
        return check_site(Site(step, parts[0], parts[0], *_tail(parts[1:], parts[0])))
    if parts[-1] in _PARAMETERS:
        return check_site(Site(step, "weight", ".".join(parts[:-1]), parts[-1]))
    return check_site(Site(step, otherwise, rest, default_port(otherwise)))


def _tail(parts: list[str], phase: str) -> tuple[str, int, int | None]:
    """What may follow the phase: port, call, sample."""
    call, sample = 0, None
    if parts and (match := _SAMPLE.fullmatch(parts[-1])):
        sample = int(match[1])
        parts = parts[:-1]
    if parts and (match := _CALL.fullmatch(parts[-1])):
        call = int(match[1])
        parts = parts[:-1]
    return ".".join(parts) or default_port(phase), call, sample
