"""linear-attention-transformer: attention by sums of keys times values."""

from ..case import Case, Truth, at, normal

PATH = "linear_attention_transformer"


def attention(name, buggy, fixed, truth=None, source="", **settings):
    def make(release):
        found = release.find(f"{PATH}.linear_attention_transformer:SelfAttention")
        return found(16, heads=2, **settings)

    return Case(
        name, "linear-attention-transformer", buggy, fixed, make, lambda: (normal(2, 12, 16),), truth, source
    )  # fmt: skip


def image(release):
    return release.find(f"{PATH}.images:ImageLinearAttention")(6, key_dim=4, value_dim=4, heads=2)


CASES = [
    attention(
        "linear-scale-before-softmax",
        "0.15.3",
        "0.15.4",
        Truth(
            (at("to_out", "in*"),),
            ("op-order", "attention-scale"),
            "queries and keys are scaled by width ** -0.25 before their softmax, not queries by width ** -0.5 after it",
            (r"softmax.*scale|scale.*softmax",),
        ),
        "0.15.4 scales the queries after their softmax",
    ),
    Case(
        "linear-image-softmax-axes",
        "linear-attention-transformer",
        "0.12.0",
        "0.12.1",
        image,
        lambda: (normal(2, 6, 3, 3),),
        Truth(
            (at("to_out", "in*"),),
            ("norm-axis",),
            "keys are normalised over features instead of positions, queries over heads instead of features",
            (r"softmax.*(dim|axis)", r"(dim|axis).*softmax"),
        ),
        "0.12.1: k.softmax(-1) for 2, q.softmax(-2) for 1",
    ),
    attention(
        "linear-context-not-summed",
        "0.17.0",
        "0.17.1",
        Truth(
            (at("to_out", "in*"),),
            ("skipped-op",),
            "the running sum of the context is computed and not used",
            ("cumsum",),
        ),
        "0.17.1 names the running sum context",
        causal=True,
    ),
    attention(
        "linear-divisor-multiplied",
        "0.17.1",
        "0.17.2",
        Truth(
            (at("to_out", "in*"),),
            ("skipped-op",),
            "the sum of keys is multiplied with, not divided by: 1 / is missing",
            (r"reciprocal", r"\b1(\.0)? ?/", "divi|rdiv|div"),
        ),
        "0.17.2: D_inv = 1. / einsum(...)",
        causal=True,
    ),
]
