"""The decoder: embedding, layers of attention and feed-forward, a norm, logits. Names are Hugging Face's.

Every stage that `firstdrift.core.stages` names is handed to the taps where it is computed. With taps off nothing is
computed for them, and attention may run fused.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .decoder_layers import OFF, Cache, FeedForward, MixtureOfExperts, RMSNorm, Taps, angles, rotate, wide
from .decoder_settings import DecoderConfig

IGNORED = -100  # a label that counts for nothing


class Attention(nn.Module):
    """Grouped-query attention: every group of query heads shares a key and a value head."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        self.window = config.window(layer)
        self.scale = config.head_dim**-0.5 if config.score_scale is None else config.score_scale
        hidden, size = config.hidden_size, config.head_dim
        self.q_proj = nn.Linear(hidden, config.num_attention_heads * size, bias=config.qkv_bias)
        self.k_proj = nn.Linear(hidden, config.num_key_value_heads * size, bias=config.qkv_bias)
        self.v_proj = nn.Linear(hidden, config.num_key_value_heads * size, bias=config.qkv_bias)
        self.o_proj = nn.Linear(config.num_attention_heads * size, hidden, bias=config.output_bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(size, config)
            self.k_norm = RMSNorm(size, config)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], cache: Cache | None = None, taps: Taps = OFF) -> Tensor:
        """Attend from the tokens of `x`, `[batch, tokens, hidden]`, to themselves and to what the cache holds."""
        q, k, v = (self._heads(part) for part in self._project(x, taps))
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        taps("q_pre_rope", self.layer, q)
        taps("k_pre_rope", self.layer, k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # [batch, heads, tokens, size]
        q, k = (rotate(part, *turn, self.config.rope.adjacent) for part in (q, k))
        taps("q_post_rope", self.layer, q.transpose(1, 2))
        taps("k_post_rope", self.layer, k.transpose(1, 2))
        if cache is not None:
            k, v = cache.extend(self.layer, k, v)
        mixed = self._attend(q, k, v, taps).transpose(1, 2).flatten(2)
        taps("attention", self.layer, mixed)
        out: Tensor = self.o_proj(mixed)
        taps("attn_out", self.layer, out)
        return out

    def _project(self, x: Tensor, taps: Taps) -> tuple[Tensor, Tensor, Tensor]:
        projections = (self.q_proj, self.k_proj, self.v_proj)
        if taps is OFF:
            q, k, v = (project(x) for project in projections)
            return q, k, v
        together = torch.cat([functional.linear(x, project.weight) for project in projections], -1)
        taps("qkv_matmul", self.layer, together)
        if self.config.qkv_bias:
            together = together + torch.cat([project.bias for project in projections])
        taps("qkv_bias", self.layer, together)
        q, k, v = together.split([project.out_features for project in projections], -1)
        return q, k, v

    def _heads(self, x: Tensor) -> Tensor:
        split: Tensor = x.unflatten(-1, (-1, self.config.head_dim))
        return split

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, taps: Taps) -> Tensor:
        """The mix of values, `[batch, heads, tokens, size]`: fused, unless somebody watches.

        Then every step is done by itself, whatever is looked at: a stage's bits do not depend on what else is
        selected, and the fused kernel, which makes zeros of rows without a finite score, hides no NaN.
        """
        groups = self.config.num_attention_heads // self.config.num_key_value_heads
        if groups > 1:
            k, v = (part.repeat_interleave(groups, 1) for part in (k, v))
        new, all_of_them = q.shape[2], k.shape[2]
        if taps is OFF and self.config.score_softcap is None:
            if new == all_of_them and self.window is None:
                return functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
            return functional.scaled_dot_product_attention(
                q, k, v, visible(new, all_of_them, self.window, q), scale=self.scale
            )
        scores = q @ k.transpose(2, 3) * self.scale
        taps("attn_scores", self.layer, scores)
        scores = softcapped(scores, self.config.score_softcap)
        scores = scores.masked_fill(~visible(new, all_of_them, self.window, q), torch.finfo(q.dtype).min)
        weights = scores.softmax(-1, dtype=wide(q.dtype)).to(q.dtype)
        taps("attn_softmax", self.layer, weights)
        return weights @ v


class Layer(nn.Module):
    """Attention and feed-forward, each on a norm of the residual stream, and added to it."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.layer, self.sandwich = layer, config.sandwich_norms
        experts = config.experts_of(layer)
        self.self_attn = Attention(config, layer)
        self.mlp: nn.Module = MixtureOfExperts(config, experts, layer) if experts else FeedForward(config, layer)
        self.input_layernorm = RMSNorm(config.hidden_size, config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config)
        if self.sandwich:
            self.pre_feedforward_layernorm = RMSNorm(config.hidden_size, config)
            self.post_feedforward_layernorm = RMSNorm(config.hidden_size, config)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], cache: Cache | None = None, taps: Taps = OFF) -> Tensor:
        """The residual stream after this layer."""
        normed = self.input_layernorm(x)
        taps("attn_norm", self.layer, normed)
        attended = self.self_attn(normed, turn, cache, taps)
        x = x + (self.post_attention_layernorm(attended) if self.sandwich else attended)
        taps("post_attn_residual", self.layer, x)
        normed = self.pre_feedforward_layernorm(x) if self.sandwich else self.post_attention_layernorm(x)
        taps("ffn_norm", self.layer, normed)
        transformed = self.mlp(normed, taps)
        x = x + (self.post_feedforward_layernorm(transformed) if self.sandwich else transformed)
        taps("post_ffn_residual", self.layer, x)
        return x


class Embedding(nn.Embedding):
    """A vector for every token, of a length that some families raise."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config.vocab_size, config.hidden_size)
        self.scale = config.embedding_scale

    def forward(self, tokens: Tensor) -> Tensor:
        """The tokens' vectors."""
        vectors = super().forward(tokens)
        return vectors if self.scale == 1.0 else vectors * torch.tensor(self.scale, dtype=vectors.dtype)


class Body(nn.Module):
    """Everything but the logits."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = Embedding(config)
        self.layers = nn.ModuleList(Layer(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config)

    def forward(self, tokens: Tensor, cache: Cache | None = None, taps: Taps = OFF) -> Tensor:
        """The last residual stream, normed."""
        x: Tensor = self.embed_tokens(tokens)
        taps("embedding", 0, x)
        start = 0 if cache is None else cache.length
        turn = angles(self.config.rope, self.config.head_dim, start, tokens.shape[1], x)
        for layer in self.layers:
            x = layer(x, turn, cache, taps)
        x = self.norm(x)
        taps("final_norm", self.config.num_hidden_layers, x)
        return x


class Decoder(nn.Module):
    """A decoder-only language model.

    `taps` is who watches; set it to a `Taps` for as long as stages are to be seen.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.taps = OFF
        self.model = Body(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.tie()

    def tie(self) -> None:
        """Make the output layer the embedding, where the settings say so; needed again after `to_empty`."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, tokens: Tensor, *, cache: Cache | None = None) -> Tensor:
        """Logits `[batch, tokens, vocabulary]` of token ids `[batch, tokens]`, which follow those in the cache."""
        logits = softcapped(self.lm_head(self.model(tokens, cache, self.taps)), self.config.logit_softcap)
        self.taps("lm_head", self.config.num_hidden_layers, logits)
        return logits

    def loss(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy of predicting each label from the tokens before it; labels of -100 do not count."""
        logits = self(tokens)
        logits = logits.to(wide(logits.dtype))
        following = functional.pad(labels[:, 1:], (0, 1), value=IGNORED)  # cheaper than to shift the logits
        return functional.cross_entropy(logits.flatten(0, 1), following.flatten(), ignore_index=IGNORED)


def initialise(model: Decoder, seed: int, std: float = 0.02) -> None:
    """Fill a model with the numbers that belong to a seed: matrices normal, norms neutral, biases zero."""
    generator = torch.Generator().manual_seed(seed)
    neutral = 1.0 - model.config.norm_offset
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.fill_(neutral)
            elif name.endswith(".bias"):
                parameter.zero_()
            else:
                drawn = torch.empty(parameter.shape, dtype=torch.float32).normal_(0.0, std, generator=generator)
                parameter.copy_(drawn)


def visible(new: int, all_of_them: int, window: int | None, like: Tensor) -> Tensor:
    """Which positions each new token may look at, `[new, all]`: itself and those before it, at most a window."""
    query = torch.arange(all_of_them - new, all_of_them, device=like.device)[:, None]
    key = torch.arange(all_of_them, device=like.device)
    allowed = key <= query
    return allowed if window is None else allowed & (key > query - window)


def softcapped(x: Tensor, cap: float | None) -> Tensor:
    """Values squashed to between -cap and cap."""
    return x if cap is None else torch.tanh(x / cap) * cap
