"""vector-quantize-pytorch: vectors replaced by the nearest of a codebook, or rounded."""

import torch
from torch import nn

from ..case import Calls, Case, Truth, Where, at, normal, weighted

PATH = "vector_quantize_pytorch"
QUANTIZER = f"{PATH}.vector_quantize_pytorch:VectorQuantize"
RESIDUAL = f"{PATH}.residual_vq:ResidualVQ"
LOOKUP_FREE = f"{PATH}.lookup_free_quantization:LFQ"
FINITE = f"{PATH}.finite_scalar_quantization:FSQ"
X = normal(2, 12, 8)


def quantizer(
    name, buggy, fixed, where=QUANTIZER, truth=None, source="", moved=False, asked=(), renamed=None, **settings
):
    """A quantizer in training, behind a layer that learns from it."""

    def make(release):
        vq = release.find(where)(**settings)
        return Calls(lambda linear, vq, x: vq(linear(x), *asked), linear=nn.Linear(8, 8), vq=vq)

    return Case(
        name, "vector-quantize-pytorch", buggy, fixed, make, lambda: (X,), truth, source, loss=weighted, train=True,
        renamed=renamed or {},
        optimizer=(lambda release, model: torch.optim.SGD(model.parameters(), lr=0.1)) if moved else None,
    )  # fmt: skip


def finite(name, buggy, fixed, levels, truth=None, source="", where=FINITE, **settings):
    def make(release):
        return release.find(where)(levels=levels, **settings)

    def inputs():
        return (2 * normal(4, 200, len(levels)),)

    return Case(name, "vector-quantize-pytorch", buggy, fixed, make, inputs, truth, source)


CODEBOOK = {"dim": 8, "codebook_size": 6, "threshold_ema_dead_code": 0}
BITS = {"dim": 8, "codebook_size": 256}

CASES = [
    quantizer(
        "straight-through-adds",
        "1.24.0",
        "1.24.1",
        truth=Truth(
            (at("vq.project_out", "in*"),),
            ("swapped-operands", "missing-residual"),
            "straight through: source + (target + source) instead of source + (target - source)",
            (r"\bsub\b", r"\badd\b", "counts 2 more"),
        ),
        source="1.24.1: tgt - src",
        rotation_trick=False,
        **CODEBOOK,
    ),
    quantizer(
        "diversity-of-the-farthest",
        "1.23.2",
        "1.23.3",
        truth=Truth(
            (at("vq", "out*2"),),
            ("loss-formula", "scale"),
            "the softmax of the diversity loss is taken of the distances' negative, which already are negative",
            (r"\bneg\b", "sign", r"-1"),
        ),
        source="1.23.3 drops the minus before distances",
        codebook_diversity_loss_weight=1.0,
        codebook_diversity_temperature=1.0,
        **CODEBOOK,
    ),
    finite(
        "finite-bound-too-narrow",
        "1.12.11",
        "1.12.12",
        [8, 5, 5],
        Truth(
            (at("project_out", "in*"), at("", "out*")),
            (),
            "half the range of a level is multiplied by 0.999 instead of 1.001",
            (r"0\.999|1\.001|-0\.001|-1e-0?3|\b0\.998",),
        ),
        "1.12.12: (1 + eps)",
    ),
    finite(
        "finite-shift-by-tangent",
        "1.12.1",
        "1.12.4",
        [4, 4, 4],
        Truth(
            (at("project_out", "in*"), at("", "out*")),
            ("activation-variant",),
            "the shift of even levels is a tangent instead of an inverse hyperbolic one: tan for atanh",
            (r"\btan\b", "atanh"),
        ),
        "1.12.4: atanh",
    ),
    quantizer(
        "lookup-free-loss-without-commitment",
        "1.9.11",
        "1.9.12",
        LOOKUP_FREE,
        Truth(
            (at("vq", "out.entropy_aux_loss"),),
            ("missing-term", "loss-formula"),
            "the entropy loss alone is returned; the commitment loss is not in it",
            ("missing|left out",),
        ),
        "1.9.12 returns aux_loss",
        **BITS,
    ),
    quantizer(
        "lookup-free-temperature",
        "1.9.10",
        "1.9.11",
        LOOKUP_FREE,
        Truth(
            (at("vq.activation", "in*"),),
            ("scale", "gradient-scale"),
            "the straight-through value is multiplied by the temperature (3) before its activation: so is its gradient",
            (r"\b3(\.0)?\b",),
        ),
        "1.9.11: self.activation(x)",
        asked=(3.0,),
        **BITS,
    ),
    quantizer(
        "commitment-never-reaches-codebook",
        "1.6.12",
        "1.6.14",
        truth=Truth(
            (Where("grad", "vq._codebook", "embed"), Where("agrad", "vq._codebook")),
            ("gradient-missing", "gradient-formula"),
            "a learnable codebook gets no gradient of the commitment loss: its codes are detached",
            ("detach", "no gradient"),
        ),
        source="1.6.14 takes the codes as they were before the straight-through step",
        learnable_codebook=True,
        ema_update=False,
        **CODEBOOK,
    ),
    quantizer(
        "residual-not-detached",
        "0.10.11",
        "0.10.12",
        RESIDUAL,
        Truth(
            (Where("agrad", "vq.layers.0*"),),
            ("gradient-missing", "gradient-formula"),
            "the gradient of the next residual flows into this layer's codes, too, and cancels; detached in the fix",
            ("detach",),
        ),
        "0.10.12: residual - quantized.detach()",
        num_quantizers=2,
        **CODEBOOK,
    ),
    quantizer(
        "codebook-average-not-moved",
        "0.10.12",
        "0.10.14",
        truth=Truth(
            (Where("weight_after", "vq._codebook", "embed*"),),
            ("skipped-op", "stale-buffer", "batchnorm-momentum"),
            "the running average of what each code stands for is not updated",
            ("not updated", "left out", "never", "unchanged", "stale"),
        ),
        source="0.10.14 adds ema_inplace(self.embed_avg, embed_sum, self.decay)",
        moved=True,
        **CODEBOOK,
    ),
    finite(
        "residual-finite-scales",
        "1.12.4",
        "1.12.5",
        [5, 5, 5],
        Truth(
            (Where("weight", "", "scales"), Where("weight", "*", "scales")),
            ("channel-scale", "scale", "wrong-weight"),
            "the second quantizer's scale is 1 / levels instead of 1 / (levels - 1)",
            (r"\b0?\.2\b.*\b0?\.25\b", r"\b0?\.8\b"),
        ),
        "1.12.5: (levels_tensor - 1) ** -ind",
        where=f"{PATH}.residual_fsq:ResidualFSQ",
        num_quantizers=2,
        dim=3,
    ),
    quantizer(
        "orthogonality-of-all-codes",
        "0.4.4",
        "0.4.5",
        truth=Truth(
            (at("vq", "out*2"),),
            ("loss-formula", "skipped-op"),
            "the loss is that of all codes, although the used ones were picked",
            (r"\bindex\b", "left out", "unique"),
        ),
        source="0.4.5: orthgonal_loss_fn(codebook)",
        dim=8,
        codebook_size=40,
        orthogonal_reg_weight=1.0,
        orthogonal_reg_active_codes_only=True,
    ),
    quantizer("codebook-own-distance", "1.6.28", "1.6.29", **CODEBOOK),
    quantizer("codebook-moved-by-data", "1.6.17", "1.6.18", moved=True, **CODEBOOK),
    quantizer("codebook-sum-contiguous", "1.12.10", "1.12.11", moved=True, **CODEBOOK),
    quantizer("lookup-free-detached-codes", "1.9.8", "1.9.9", LOOKUP_FREE, **BITS),
    quantizer(
        "similar-codes-transformed-late",
        "1.20.3",
        "1.20.4",
        f"{PATH}.sim_vq:SimVQ",
        renamed={"vq.codebook_to_codes": "vq.code_transform"},
        dim=8,
        codebook_size=6,
    ),
    quantizer("codebook-normalised-once", "1.16.1", "1.16.2", moved=True, use_cosine_sim=True, **CODEBOOK),
]
