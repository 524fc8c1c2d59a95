"""performer-pytorch: attention by random features."""

from ..case import Case, Truth, Where, at, normal, weighted

KERNELS = ("fast_transformers", "fast_transformers.causal_product")  # compiled, and only for a GPU


def fast(name, buggy, fixed, truth=None, source="", absent=(), **settings):
    def make(release):
        return release.find("performer_pytorch.performer_pytorch:FastAttention")(8, nb_features=16, **settings)

    def inputs():
        return tuple(normal(2, 3, 10, 8, seed=seed) for seed in (1, 2, 3))

    return Case(name, "performer-pytorch", buggy, fixed, make, inputs, truth, source, absent=absent)


def whole(release):
    found = release.find("performer_pytorch.performer_pytorch:SelfAttention")
    return found(16, heads=2, dim_head=8, nb_features=16)


CASES = [
    fast(
        "performer-not-normalised",
        "0.1.4",
        "0.2.1",
        Truth(
            (at("", "out*"),),
            ("norm-missing", "skipped-op", "missing-term"),
            "the result is not divided by the sum of the kernel",
            (r"r?div|reciprocal|\b1(\.0)? ?/",),
        ),
        "0.1.5 multiplies with the sum, 0.2.1 divides by it",
        KERNELS,
        redraw_projection=False,
    ),
    fast(
        "performer-divisor-multiplied",
        "0.2.0",
        "0.2.1",
        Truth(
            (at("", "out*"),),
            ("skipped-op",),
            "the sum of the kernel is multiplied with, not divided by",
            (r"r?div|reciprocal|\b1(\.0)? ?/",),
        ),
        "0.2.1: D_inv = 1. / einsum(...)",
        KERNELS,
        redraw_projection=False,
    ),
    fast(
        "performer-causal-divisor-multiplied",
        "0.11.1",
        "0.11.2",
        Truth(
            (at("", "out*"),),
            ("skipped-op",),
            "the running sum of the kernel is multiplied with, not divided by",
            (r"r?div|reciprocal|\b1(\.0)? ?/",),
        ),
        "0.11.2: D_inv = 1. / einsum(...)",
        causal=True,
    ),
    fast(
        "performer-maximum-of-all-heads",
        "1.1.0",
        "1.1.1",
        Truth(
            (at("", "out*"),),
            ("norm-axis",),
            "the maximum taken from the keys' exponents is that of the whole batch, not of each head",
            (r"\ba?max\b",),
        ),
        "1.1.1: amax over the last two axes",
    ),
    Case(
        "performer-maximum-not-detached",
        "performer-pytorch",
        "1.1.3",
        "1.1.4",
        whole,
        lambda: (normal(2, 10, 16),),
        Truth(
            (Where("agrad", "to_[qk]"),),
            ("gradient-formula",),
            "gradient flows through the maximum that is subtracted in the exponent; it is detached in the fix",
            (r"detach", r"\ba?max\b"),
        ),
        "1.1.4 detaches the maximum",
        loss=weighted,
    ),
]
