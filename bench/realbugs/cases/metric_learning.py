"""pytorch-metric-learning: losses of embeddings and their labels."""

import torch
from torch import nn

from ..case import Calls, Case, Truth, at, normal, weighted

SCIPY = ("scipy", "scipy.stats", "scipy.special")  # for a ranking that no case makes
LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])


def loss(name, buggy, fixed, which, truth=None, source="", **settings):
    def make(release):
        found = release.find(f"pytorch_metric_learning.losses.{which}")(**settings)
        return Calls(lambda linear, loss, x: loss(linear(x), LABELS), linear=nn.Linear(6, 8), loss=found)

    return Case(
        name, "pytorch-metric-learning", buggy, fixed, make, lambda: (normal(8, 6),), truth, source, loss=weighted,
        absent=SCIPY,
    )  # fmt: skip


CASES = [
    loss(
        "arcface-normalised-over-classes",
        "0.9.50",
        "0.9.51",
        "arcface_loss:ArcFaceLoss",
        Truth(
            (at("loss.cross_entropy", "in*"),),
            ("norm-axis",),
            "class weights are normalised over the classes instead of over the features",
            (r"(dim|axis).*norm|norm.*(dim|axis)",),
        ),
        "0.9.51: dim=0",
        margin=30,
        num_labels=4,
        embedding_size=8,
        scale=8,
    ),
    loss(
        "circle-sums-underflow",
        "0.9.90",
        "0.9.91",
        "circle_loss:CircleLoss",
        Truth(
            (at("loss.soft_plus", "in*"),),
            ("mask-missing", "overflow"),
            "pairs that do not count are part of the maximum that is taken out of the exponents: the rest underflows",
            (r"mask", r"\bmax\b"),
        ),
        "0.9.91 masks before the logsumexp",
        m=0.25,
        gamma=256,
    ),
    loss(
        "contrastive-distances-normalised",
        "0.9.75",
        "0.9.76",
        "contrastive_loss:ContrastiveLoss",
        Truth(
            (at("loss", "out*"),),
            ("skipped-op", "loss-formula"),
            "distances are divided by the norms of both embeddings, as only similarities should be",
            (r"norm", r"div"),
        ),
        "0.9.76: if self.use_similarity and not self.normalize_embeddings",
        normalize_embeddings=False,
        neg_margin=9,
    ),
    loss("multi-similarity-masked-before", "0.9.90", "0.9.91", "multi_similarity_loss:MultiSimilarityLoss"),
    loss("fast-ap-in-one-go", "0.9.55", "0.9.56", "fast_ap_loss:FastAPLoss", num_bins=5),
]
