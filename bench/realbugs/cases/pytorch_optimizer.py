"""pytorch-optimizer: a collection of optimizers."""

from ..case import Case, Truth, Where, normal
from ..networks import squares, two_layers


def optimizer(name, buggy, fixed, which, truth=None, source="", steps=3, lr=1e-2, **settings):
    def made(release, model):
        return release.find(f"pytorch_optimizer.optimizer.{which}")(model.parameters(), lr=lr, **settings)

    return Case(
        name, "pytorch-optimizer", buggy, fixed, two_layers, lambda: (normal(5, 6),), truth, source,
        loss=squares, optimizer=made, steps=steps, train=True,
    )  # fmt: skip


CASES = [
    optimizer(
        "sgdp-nesterov-in-place",
        "2.7.0",
        "2.8.0",
        "sgdp:SGDP",
        Truth(
            (Where("optim", "0", "*momentum*"),),
            ("optimizer-momentum",),
            "the step is computed in the momentum buffer itself, which then holds momentum * buffer + gradient",
            (r"momentum",),
        ),
        "2.8.0: d_p = buf.clone()",
        momentum=0.9,
        dampening=0.5,
        nesterov=True,
    ),
    optimizer(
        "scion-without-momentum",
        "3.6.0",
        "3.6.1",
        "scion:SCION",
        Truth(
            (Where("weight_after", "0"), Where("optim", "0", "*d")),  # where the norm is taken in place
            ("optimizer-momentum", "wrong-weight"),
            "the step is taken along the gradient instead of along its running average",
            (r"momentum", r"grad"),
        ),
        "3.6.1: norm.lmo(d)",
    ),
    optimizer(
        "schedule-free-radam-correction",
        "3.4.2",
        "3.5.0",
        "schedulefree:ScheduleFreeRAdam",
        Truth(
            (Where("weight_after", "0"), Where("optim", "0", "*z")),
            ("optimizer-bias-correction",),
            "the second bias correction is that of a debiased beta instead of 1 - beta ** step",
            (r"bias.correction",),
        ),
        "3.5.0: bias_correction2 by debias, noted as a fix",
        steps=8,
    ),
    optimizer(
        "ademamix-cautious-in-place",
        "3.3.1",
        "3.3.2",
        "ademamix:AdEMAMix",
        Truth(
            (Where("optim", "0", "*exp_avg"),),
            (),
            "the cautious mask is applied to the running average itself, not to a copy of it",
            (r"mask", r"cautious"),
        ),
        "3.3.2 clones exp_avg before the mask",
        cautious=True,
        lr=0.3,
        steps=6,
    ),
    optimizer("lion-centralised-in-place", "2.9.0", "2.9.1", "lion:Lion", use_gc=True),
    optimizer("adan-centralised-in-place", "2.9.0", "2.9.1", "adan:Adan", use_gc=True),
    optimizer("pnm-constants-before-loop", "2.2.0", "2.2.1", "pnm:PNM"),
    optimizer("diffgrad-coefficient", "2.3.0", "2.3.1", "diffgrad:DiffGrad"),
]
