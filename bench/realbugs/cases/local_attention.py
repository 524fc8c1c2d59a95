"""local-attention: windows of queries that see their neighbours."""

from ..case import Case, Truth, at, normal

SHAPE = (2, 2, 12, 8)


def local(name, buggy, fixed, truth=None, source="", **settings):
    def make(release):
        return release.find("local_attention.local_attention:LocalAttention")(window_size=4, **settings)

    def inputs():
        return tuple(normal(*SHAPE, seed=seed) for seed in (1, 2, 3))

    return Case(name, "local-attention", buggy, fixed, make, inputs, truth, source)


CASES = [
    local(
        "local-window-and-causal",
        "1.2.1",
        "1.2.2",
        Truth(
            (at("dropout", "in*"),),
            ("mask-missing",),
            "what is both ahead and too far back is masked (nothing), instead of what is one of them: & for |",
            (r"mask.*(missing|nothing|ignored|left out)", r"bitwise_(and|or)", r"\b__(and|or)__"),
        ),
        "1.2.2: mask | (...) in place of &",
        causal=True,
        exact_windowsize=True,
    ),
    local(
        "local-padding-seen",
        "1.4.2",
        "1.4.3",
        Truth(
            (at("dropout", "in*"),),
            ("mask-missing", "padding"),
            "the positions of padded keys are filled with the length, so the test for -1 masks none of them",
            (r"\b-1(\.0)?\b", r"pad", r"mask.*(missing|nothing|ignored|left out)"),
        ),
        "1.4.3 takes pad_value = t back",
        causal=False,
    ),
    local("local-one-mask", "1.2.0", "1.2.2", causal=True, exact_windowsize=True),
    local("local-long-positions", "1.4.3", "1.4.4", causal=True),
    local("local-look-around-unfold", "1.10.1", "1.11.0", causal=True, dim=8),
    local("local-look-around-movedim", "1.11.0", "1.11.1", causal=False, dim=8),
]
