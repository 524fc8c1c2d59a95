"""A setting that the candidate states otherwise has the label of what it does."""

import pytest

from firstdrift.explain.labels import _LABELS, LABELS, NONE_FITS, label_of


@pytest.mark.parametrize(
    ("key", "op", "label"),
    [
        ("eps", "torch.nn.LayerNorm", "norm-eps"), ("eps", "LlamaRMSNorm", "norm-eps"),
        ("eps", "AdamW", "optimizer-eps"),
        ("rms_norm_eps", None, "norm-eps"), ("text.rope_theta", None, "rope-theta"), ("base", "RoPE", "rope-theta"),
        ("partial_rotary_factor", None, "rope-partial"), ("factor", "RotaryEmbedding", "rope-scaling"),
        ("scale", "AttentionScores", "attention-scale"), ("scale", "SDPA", "attention-scale"),
        ("scale", "Embedding", "scale"), ("approximate", "GELU", "activation-variant"),
        ("hidden_act", None, "activation-variant"), ("negative_slope", "LeakyReLU", "activation-variant"),
        ("momentum", "BatchNorm2d", "batchnorm-momentum"), ("momentum", "SGD", "optimizer-momentum"),
        ("groups.1.lr", "SGD", "optimizer-lr"), ("sliding_window", None, "window-off-by-one"),
        ("max_val", "Hardtanh", "clamp"), ("count_include_pad", "AvgPool2d", "pool-count-pad"),
        ("weight_decay", "AdamW", "weight-decay-coupling"), ("reduction", "MSELoss", "reduction-scale"),
        # nothing in particular: a name that means something elsewhere, or in no operation
        ("factor", "Scaled", NONE_FITS), ("scale", "Scaled", NONE_FITS), ("eps", None, NONE_FITS),
        ("offset", "Scaled", NONE_FITS), ("steps", "Sampler", NONE_FITS), ("momentums", "SGD", NONE_FITS),
    ],
)  # fmt: skip
def test_a_setting_has_the_label_of_what_it_does(key, op, label):
    assert label_of(key, op) == label


def test_every_label_is_one_of_the_vocabulary():
    assert {label for _, _, label in _LABELS} | {NONE_FITS} <= LABELS.keys()
