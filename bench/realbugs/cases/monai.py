"""monai: losses for images of patients."""

from ..case import Calls, Case, Truth, at, normal


def loss(name, buggy, fixed, which, inputs, truth=None, source="", **settings):
    def make(release):
        return release.find(f"monai.losses.{which}")(**settings)

    return Case(name, "monai", buggy, fixed, make, inputs, truth, source)


def normalised(release):
    function = release.find("monai.losses.perceptual:normalize_tensor")
    return Calls(lambda x: function(x, eps=1e-2))


CASES = [
    Case(
        "perceptual-epsilon-outside",
        "monai",
        "1.6.0",
        "1.6.1",
        normalised,
        lambda: (normal(2, 5, 4, 4) / 10,),
        Truth(
            (at("", "out*"),),
            ("norm-eps-placement",),
            "the epsilon is added to the norm instead of under its root",
            (r"outside|inside|under",),
        ),
        "1.6.1 adds eps before the square root",
    ),
    loss(
        "contrastive-normalised-once",
        "1.1.0",
        "1.2.0",
        "contrastive:ContrastiveLoss",
        lambda: (normal(4, 8, seed=1), normal(4, 8, seed=2)),
        temperature=0.5,
    ),
]
