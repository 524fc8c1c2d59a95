"""nystrom-attention: attention through landmarks."""

from ..case import Case, Truth, at, normal


def nystrom(name, buggy, fixed, truth=None, source="", length=12, landmarks=4, heads=2):
    def make(release):
        return release.find("nystrom_attention.nystrom_attention:NystromAttention")(16, 8, heads, landmarks)

    return Case(name, "nystrom-attention", buggy, fixed, make, lambda: (normal(2, length, 16),), truth, source)


CASES = [
    nystrom(
        "nystrom-landmarks-by-heads",
        "0.0.1",
        "0.0.2",
        Truth(
            (at("to_out", "in*"),),
            (),
            "a landmark is the mean of 4 positions (heads / landmarks), not of 6 (length / landmarks)",
            (r"\b4\b.*\b6\b", r"\b6\b.*\b4\b"),
        ),
        "0.0.2: l = ceil(n / m), where 0.0.1 took the axis of the heads",
        length=12,
        landmarks=2,
        heads=8,
    ),
    nystrom(
        "nystrom-padded-behind",
        "0.0.7",
        "0.0.8",
        Truth(
            (at("to_qkv", "in*"),),
            ("padding",),
            "two rows of zeros are added behind the sequence instead of before it",
            (r"\bpad\b", r"order is .* instead of"),
        ),
        "0.0.8 pads before",
        length=10,
    ),
    nystrom(
        "nystrom-first-rows",
        "0.0.9",
        "0.0.10",
        Truth(
            (at("", "out*"),),
            ("index-shift", "position-shift", "padding"),
            "the first rows are returned, padding included, instead of the last: [:n] for [-n:]",
            (r"\bslice\b", "rows"),
        ),
        "0.0.10: out[:, -n:]",
        length=10,
    ),
    nystrom("nystrom-values-first", "0.0.4", "0.0.5"),
    nystrom("nystrom-products-from-left", "0.0.5", "0.0.6"),
    nystrom("nystrom-not-in-place", "0.0.11", "0.0.12"),
]
