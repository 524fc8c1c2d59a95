"""lion-pytorch: the Lion optimizer."""

from ..case import Case, Truth, Where, normal
from ..networks import squares, two_layers


def lion(name, buggy, fixed, where, truth=None, source="", **settings):
    def optimizer(release, model):
        return release.find(where)(model.parameters(), lr=1e-2, **settings)

    return Case(
        name, "lion-pytorch", buggy, fixed, two_layers, lambda: (normal(5, 6),), truth, source,
        loss=squares, optimizer=optimizer, steps=3, train=True,
    )  # fmt: skip


PLAIN = "lion_pytorch.lion_pytorch:Lion"
FOREACH = "lion_pytorch.foreach:Lion"

CASES = [
    lion(
        "lion-foreach-no-lr",
        "0.2.1",
        "0.2.2",
        FOREACH,
        Truth(
            (Where("weight_after", "0"),),
            ("optimizer-lr", "scale"),
            "the signs are added as they are, instead of times -lr",
            (r"\b-?0\.01\b", r"\b-?100\b", "learning rate"),
        ),
        "0.2.2 adds alpha = -lr to the last _foreach_add_",
    ),
    lion("lion-sign-in-place", "0.0.4", "0.0.5", PLAIN, weight_decay=0.1),
    lion("lion-mul-add-for-lerp", "0.0.6", "0.0.7", PLAIN, weight_decay=0.1),
    lion("lion-foreach-no-decay", "0.2.2", "0.2.3", FOREACH),
    lion("lion-sgn-for-sign", "0.2.4", "0.2.5", PLAIN, weight_decay=0.1),
]
