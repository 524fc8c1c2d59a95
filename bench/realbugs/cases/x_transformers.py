"""x-transformers: a transformer with an option for every paper."""

from ..case import Calls, Case, Truth, at, ids, normal

PATH = "x_transformers.x_transformers"
X = normal(2, 7, 16)


def case(name, buggy, fixed, make, truth=None, source="", inputs=lambda: (X,)):
    return Case(name, "x-transformers", buggy, fixed, make, inputs, truth, source)


def layers(kind, depth=1, **settings):
    settings = {"heads": 2, "attn_dim_head": 8, **settings}
    return lambda release: release.find(f"{PATH}:{kind}")(dim=16, depth=depth, **settings)


def called(function, make):
    return lambda release: Calls(function, layers=make(release))


def attention(**settings):
    return lambda release: release.find(f"{PATH}:Attention")(16, dim_head=8, heads=2, **settings)


def language(**settings):
    def make(release):
        decoder = layers("Decoder")(release)
        return release.find(f"{PATH}:TransformerWrapper")(
            num_tokens=30, max_seq_len=10, attn_layers=decoder, **settings
        )  # fmt: skip

    return make


def with_memory(layers, x):
    return layers(x, mems=[normal(2, 3, 16, seed=5)])


def with_masked_queries(layers, x):
    return layers(x, context=normal(2, 7, 16, seed=6), mask=(ids(2, 7, below=3, seed=7) > 0))


CASES = [
    case(
        "heads-do-not-talk-afterwards",
        "0.2.4",
        "0.2.5",
        attention(talking_heads=True),
        Truth(
            (at("to_out", "in*"),),
            ("skipped-op",),
            "the heads are not mixed after the softmax: the mix of the scores is computed and not used",
            ("left out", "not applied", "einsum", "post_softmax_proj"),
        ),
        "0.2.5 mixes attn, where 0.2.4 mixed dots",
    ),
    case(
        "relative-buckets-of-the-other-kind",
        "0.6.6",
        "0.6.7",
        lambda release: release.find(f"{PATH}:RelativePositionBias")(causal=True),
        Truth(
            (at("relative_attention_bias", "in*"),),
            (),
            "a causal model takes the buckets of a bidirectional one, and the other way round",
            (r"bucket", r"causal", r"\babs\b", r"\bmaximum\b|\bmax\b"),
        ),
        "0.6.7: if not causal",
        lambda: (normal(2, 8, 12, 12),),
    ),
    case(
        "learned-alibi-sign",
        "0.22.1",
        "0.22.2",
        layers("Decoder", alibi_pos_bias=True, alibi_learned=True),
        Truth(
            (at("rel_pos", "out*"),),
            ("alibi-slope", "swapped-operands", "scale"),
            "the bias is query minus key position, not key minus query: its sign is the other one",
            (r"\bsub\b", "sign|-1"),
        ),
        "0.22.2: j - i",
    ),
    case(
        "absolute-positions-not-scaled",
        "0.24.0",
        "0.24.1",
        language(),
        Truth(
            (at("pos_emb", "out*"),),
            ("scale",),
            "positions are multiplied by 1 instead of width ** -0.5 (0.25): a flag of another name is asked",
            (r"\b0?\.25\b", r"\b4(\.0)?\b"),
        ),
        "0.24.1 asks l2norm_embed, where 0.24.0 asked the function l2norm",
        lambda: (ids(2, 7, below=30),),
    ),
    case(
        "dynamic-bias-indices",
        "0.25.2",
        "0.25.3",
        layers("Encoder", dynamic_pos_bias=True),
        Truth(
            (at("rel_pos", "out*"),),
            ("index-shift", "position-shift", "permutation"),
            "distances index the table as they are, negative ones from its end; length - 1 is not added",
            (r"\badd\b|\+ ?6|\b6\b",),
        ),
        "0.25.3: indices += n - 1",
    ),
    case(
        "tensor-product-reads-context",
        "1.0.0",
        "1.0.1",
        called(
            lambda layers, x: layers(x, context=normal(2, 7, 16, seed=6)),
            attention(tensor_product=True),
        ),
        Truth(
            (at("layers.to_r", "in*"),),
            ("wrong-weight", "residual-source", "different-input", "swapped-operands"),
            "the relation is projected from the context instead of from the queries' input",
            (r"another (recorded )?tensor", r"to_v", r"context", r"equals"),
        ),
        "1.0.1 projects x",
    ),
    case(
        "dual-residual-scale",
        "1.16.3",
        "1.16.4",
        layers("Decoder", depth=2, resi_dual=True, resi_dual_scale=0.1),
        Truth(
            (at("final_norm", "in*"), at("layers.*.2")),
            ("scale", "op-order", "residual-source", "call-count"),
            "the residual module adds the outer sum, too, which is scaled as a whole; the fix scales what is added",
            (r"\b0\.1\b", r"\b0\.01\b"),
        ),
        "1.16.4: outer_residual + out * scale",
    ),
    case(
        "flash-scale-upside-down",
        "1.22.22",
        "1.22.23",
        attention(flash=True, qk_norm=True),
        Truth(
            (at("attend", "out*"),),
            ("attention-scale", "scale"),
            "queries are scaled by default / scale instead of scale / default",
            (r"reciprocal|\bdiv\b",),
        ),
        "1.22.23: q * (self.scale / default_scale)",
    ),
    case(
        "memory-not-normalised",
        "1.27.4",
        "1.27.5",
        called(with_memory, layers("Decoder")),
        Truth(
            (at("layers.layers.0.1", "in*"),),
            ("norm-missing", "skipped-op", "call-count"),
            "memories are not normalised before they are put in front of the keys' input",
            ("norm", "left out"),
        ),
        "1.27.5: layer_mem = pre_norm(layer_mem)",
    ),
    case(
        "scores-masked-in-place",
        "0.14.1",
        "0.14.2",
        layers("Decoder"),
        Truth(
            (at("layers.0.1", "out*pre_softmax_attn"),),
            ("mask-missing",),
            "the scores that are returned are masked later, in place, as they are no copy",
            ("mask", "clone"),
        ),
        "0.14.2 returns a clone",
    ),
    case(
        "context-masked-by-queries",
        "1.17.1",
        "1.17.2",
        called(with_masked_queries, layers("Decoder", cross_attend=True)),
        Truth(
            (at("layers.layers.1.1.attend", "in*"), at("layers.layers.1.1.attend.*", "in*")),
            ("mask-missing",),
            "without a mask of its own the context is masked by that of the queries",
            (r"mask",),
        ),
        "1.17.2: context_mask if has_context else mask",
    ),
    case("x-causal-mask-by-ranges", "0.10.1", "0.10.2", layers("Decoder")),
    case("x-single-head-repeated", "1.27.8", "1.27.9", attention(one_kv_head=True)),
    case("x-frequencies-reshaped", "1.22.10", "1.22.11", layers("Decoder", rotary_pos_emb=True, attn_dim_head=32)),
]
