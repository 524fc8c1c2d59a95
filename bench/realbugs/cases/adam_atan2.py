"""adam-atan2-pytorch: Adam without an epsilon, and its relatives."""

from ..case import Case, Truth, Where, normal
from ..networks import squares, two_layers

PLAIN = "adam_atan2_pytorch.adam_atan2:AdamAtan2"
FOREACH = "adam_atan2_pytorch.foreach:AdamAtan2"
SORTED = "adam_atan2_pytorch.adam_atan2_with_wasserstein_reg:AdamAtan2"
ADOPT = "adam_atan2_pytorch.adopt_atan2:AdoptAtan2"
MUON = "adam_atan2_pytorch.muon_adam_atan2:MuonAdamAtan2"
POLAR = "adam_atan2_pytorch.polar_adam_atan2:PolarAdamAtan2"
WEIGHTS = (Where("weight_after", "0"),)
NOT_MOVED = ("skipped-op", "uninitialised", "optimizer-lr")
SAYS_NOT_MOVED = (r"not (updated|applied|moved)", "no update", "unchanged", "left out", r"\bnever\b")


def adam(name, buggy, fixed, where, truth=None, source="", steps=3, matrices="", lr=1e-2, **settings):
    def optimizer(release, model):
        chosen = {matrices: [p for p in model.parameters() if p.ndim == 2]} if matrices else {}
        rest = [p for p in model.parameters() if p.ndim != 2] if matrices else model.parameters()
        return release.find(where)(**chosen, params=rest, lr=lr, **settings)

    return Case(
        name, "adam-atan2-pytorch", buggy, fixed, two_layers, lambda: (normal(5, 6),), truth, source,
        loss=squares, optimizer=optimizer, steps=steps, train=True,
    )  # fmt: skip


CASES = [
    adam(
        "atan2-state-in-place",
        "0.0.4",
        "0.0.5",
        PLAIN,
        Truth(
            (Where("optim", "0", "*exp_avg_sq"),),
            (),
            "exp_avg_sq is scaled and its root taken in place, so the state holds the denominator",
            ("sqrt", r"\broot\b"),
        ),
        "0.0.5 clones exp_avg_sq before mul_ and sqrt_",
    ),
    adam(
        "atan2-foreach-last-only",
        "0.0.5",
        "0.0.6",
        FOREACH,
        Truth(
            (Where("optim", "0", "*exp_avg*"),),
            NOT_MOVED,
            "the lists are begun anew for every parameter, so only the last one is updated",
            SAYS_NOT_MOVED,
        ),
        "0.0.6 makes the lists once, before the loop over parameters",
    ),
    adam(
        "atan2-foreach-lr-is-decay",
        "0.0.8",
        "0.0.9",
        FOREACH,
        Truth(
            WEIGHTS,
            NOT_MOVED,
            "learning rate and weight decay are unpacked in each other's place: the rate is 0",
            (*SAYS_NOT_MOVED, "learning rate"),
        ),
        "0.0.9 unpacks weight_decay first, as the names say",
    ),
    adam(
        "atan2-decay-without-lr",
        "0.0.10",
        "0.0.11",
        PLAIN,
        Truth(
            WEIGHTS,
            ("weight-decay-coupling",),
            "weights decay by lr / initial lr * decay (0.1) instead of lr * decay (0.001)",
            (r"decay.*(instead of|times|factor)", r"\b0\.9\b.*\b0\.999\b"),
        ),
        "0.0.11 multiplies by 1 - lr * wd",
        weight_decay=0.1,
    ),
    adam(
        "atan2-regeneration-lerp",
        "0.0.11",
        "0.0.12",
        PLAIN,
        Truth(
            WEIGHTS,
            (),
            "lerp towards the initial weights by 0.9 (1 - rate) instead of 0.1 (the rate)",
            (r"\b0\.9\b.*\b0\.1\b", r"\blerp\b"),
        ),
        "0.0.12 drops the 1 - from the lerp",
        regen_reg_rate=0.1,
    ),
    adam(
        "atan2-foreach-decoupled-decay",
        "0.3.6",
        "0.3.7",
        FOREACH,
        Truth(
            WEIGHTS,
            ("weight-decay-coupling",),
            "the decay is divided by the initial lr once for every parameter instead of once",
            (r"decay.*(instead of|times|factor)",),
        ),
        "0.3.7 divides before the loop over parameters",
        weight_decay=1e-2,
        decoupled_wd=True,
        lr=0.5,
    ),
    adam(
        "atan2-sorted-parameter",
        "0.3.6",
        "0.3.7",
        SORTED,
        Truth(
            WEIGHTS,
            NOT_MOVED,
            "the name of the parameter is given to its sorted copy, so the first update goes there and is lost",
            SAYS_NOT_MOVED,
        ),
        "0.3.7 names the sorted copy sorted_p",
        regen_reg_rate=0.1,
    ),
    adam(
        "adopt-cautious-mask",
        "0.3.6",
        "0.3.7",
        ADOPT,
        Truth(
            WEIGHTS,
            (),
            "the mask compares the gradient with its own update instead of with the momentum, so it masks nothing",
            ("mask", r"left out", "not applied"),
        ),
        "0.3.7: align_mask = (m * grad) > 0",
        cautious_factor=0.0,
        lr=0.5,
        steps=6,
    ),
    adam(
        "muon-not-orthogonalised",
        "0.2.1",
        "0.2.2",
        MUON,
        Truth(
            WEIGHTS,
            ("skipped-op",),
            "matrices are returned before the Newton-Schulz iteration",
            ("left out", "not applied", "skipped"),
        ),
        "0.2.2: `if t.ndim > 3: return t`, where 0.2.1 had <= 3",
        matrices="muon_params",
        remove_muon_params_from_params=False,
    ),
    adam("atan2-factor-into-alpha", "0.0.2", "0.0.3", PLAIN),
    adam("atan2-mul-for-clone", "0.0.8", "0.0.9", PLAIN),
    adam("atan2-orthogonal-states", "0.3.2", "0.3.3", "adam_atan2_pytorch.adam_atan2_with_orthog_grad:AdamAtan2"),
    adam("atan2-foreach-corrections", "0.3.6", "0.3.7", FOREACH),
    adam("polar-polynomial", "0.2.7", "0.2.8", POLAR, matrices="polar_params", remove_polar_params_from_params=False),
]
