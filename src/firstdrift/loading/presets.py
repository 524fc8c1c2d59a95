"""Two architectures by name, with their published numbers, and how many parameters an architecture has.

The project these come from asserts that Llama-370M has between 366 and 374 million parameters. That holds when the
tied output layer is counted once more, as it is wherever this band is asked for, and not for what is stored.
"""

from __future__ import annotations

from .architecture import Architecture, Fields

LLAMA_370M = Architecture(
    vocab_size=50_257, hidden_size=1024, num_attention_heads=16, num_kv_heads=4, intermediate_size=2816,
    num_hidden_layers=24, max_position_embeddings=4096, rope_theta=10_000.0, rms_norm_eps=1e-5,
    tie_word_embeddings=True, name="LlamaForCausalLM", family="llama",
)  # fmt: skip
QWEN2_0_5B = Architecture(
    vocab_size=151_936, hidden_size=896, num_attention_heads=14, num_kv_heads=2, intermediate_size=4864,
    num_hidden_layers=24, max_position_embeddings=32_768, rope_theta=1_000_000.0, rms_norm_eps=1e-6,
    tie_word_embeddings=True, name="Qwen2ForCausalLM", family="qwen2",
)  # fmt: skip
PRESETS = {"llama-370m": LLAMA_370M, "qwen2-0.5b": QWEN2_0_5B}
LLAMA_370M_BAND = (366_000_000, 374_000_000)  # parameters, a tied output layer counted too
BIASED = frozenset({"qwen2"})  # families whose q, k and v have a bias


def parameter_count(of: Fields, *, biased: bool, count_tied: bool = False) -> int:
    """How many numbers a decoder stores, q, k and v with a bias or not; `count_tied` counts a tied output too."""
    hidden, inner = of.hidden_size, of.intermediate_size
    shared = hidden // of.num_attention_heads * of.num_kv_heads
    attention = 2 * hidden * hidden + 2 * hidden * shared + (hidden + 2 * shared if biased else 0)
    layer = attention + 3 * hidden * inner + 2 * hidden
    outputs = 1 if of.tie_word_embeddings and not count_tied else 2
    return outputs * of.vocab_size * hidden + of.num_hidden_layers * layer + hidden
