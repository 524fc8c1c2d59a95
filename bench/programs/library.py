"""Models of transformers, built from tiny configurations: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn

from .network import Network, adamw, draw_of, infers, normal, sgd, tokens, trains

VOCABULARY, WIDTH = 97, 32
DECODER: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
ENCODER: dict[str, Any] = {
    "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip


# Decoders of text


def gpt2(**more: Any) -> nn.Module:
    config = hf.GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=WIDTH, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0, **more
    )
    return hf.GPT2LMHeadModel(config).train()


def llama(**more: Any) -> nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**{**DECODER, **more})).train()


def checkpointed_llama() -> nn.Module:
    """Weights in bfloat16, tied, and activations computed again in the backward pass."""
    model = llama(tie_word_embeddings=True).to(torch.bfloat16)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def gemma2() -> nn.Module:
    """Caps on scores and logits, and a sliding window shorter than the text in every other layer."""
    config = hf.Gemma2Config(
        **DECODER, head_dim=8, query_pre_attn_scalar=8, sliding_window=4, attn_logit_softcapping=5.0,
        final_logit_softcapping=3.0, attn_implementation="eager",
    )  # fmt: skip
    return hf.Gemma2ForCausalLM(config).train()


def mixtral() -> nn.Module:
    """Experts one after another, each on the tokens routed to it, with the router's own loss and its jitter."""
    config = hf.MixtralConfig(
        **DECODER, num_local_experts=4, num_experts_per_tok=2, output_router_logits=True, router_jitter_noise=0.1,
        experts_implementation="eager",
    )  # fmt: skip
    return hf.MixtralForCausalLM(config).train()


def qwen3_moe() -> nn.Module:
    """Experts in one grouped matrix product, over sorted tokens."""
    config = hf.Qwen3MoeConfig(
        **DECODER, head_dim=8, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True,
        experts_implementation="grouped_mm",
    )  # fmt: skip
    return hf.Qwen3MoeForCausalLM(config).train()


def qwen3_next() -> nn.Module:
    """A layer with a gated delta rule, whose fallback writes into slices row by row, and one of attention."""
    config = hf.Qwen3NextConfig(
        **DECODER, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
        shared_expert_intermediate_size=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"],
    )  # fmt: skip
    return hf.Qwen3NextForCausalLM(config).train()


def mamba() -> nn.Module:
    """The slow path: a loop over time, as the fast one needs kernels of a GPU."""
    config = hf.MambaConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, state_size=4, num_hidden_layers=2)
    return hf.MambaForCausalLM(config).train()


def language_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    text = tokens(draw, 3, 12)
    return model(input_ids=text, labels=text).loss


def packed_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    """Two texts in one row, whose positions start again, and a prompt that is not learned."""
    text = tokens(draw, 1, 20)
    places = torch.cat([torch.arange(8), torch.arange(12)])[None]
    labels = text.clone()
    labels[:, :3] = labels[:, 8] = -100
    return model(input_ids=text, position_ids=places, labels=labels, use_cache=False).loss


# Decoding


def decodes(model: Any, draw: torch.Generator) -> None:
    """A prompt at once, then token by token with the cache, each chosen by the one before."""
    text = tokens(draw, 2, 6)
    out = model(input_ids=text, use_cache=True)
    for _ in range(5):
        out = model(input_ids=out.logits[:, -1:].argmax(-1), past_key_values=out.past_key_values, use_cache=True)


def generates(**settings: Any) -> Any:
    """`generate` on prompts of unequal length, padded on the left."""

    def run(model: Any, draw: torch.Generator) -> None:
        text, mask = tokens(draw, 2, 6), torch.ones(2, 6, dtype=torch.long)
        text[0, :2], mask[0, :2] = 0, 0
        model.generate(input_ids=text, attention_mask=mask, max_new_tokens=5, pad_token_id=0, **settings)

    return run


# Encoders, and encoders with decoders


def bert() -> nn.Module:
    config = hf.BertConfig(
        **ENCODER, vocab_size=VOCABULARY, max_position_embeddings=32, num_labels=4, attn_implementation="eager"
    )
    return hf.BertForTokenClassification(config).train()


def padded_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    """Rows of different lengths; what is padded has no label."""
    lengths = torch.randint(4, 13, (4, 1), generator=draw)
    mask = (torch.arange(12) < lengths).long()
    text = tokens(draw, 4, 12) * mask
    labels = torch.randint(4, (4, 12), generator=draw).masked_fill(mask == 0, -100)
    return model(input_ids=text, attention_mask=mask, labels=labels).loss


def t5() -> nn.Module:
    config = hf.T5Config(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    return hf.T5ForConditionalGeneration(config).train()


def translation_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    source, target = tokens(draw, 3, 10), tokens(draw, 3, 7)
    mask = torch.ones_like(source)
    mask[1, 6:] = 0
    return model(input_ids=source, attention_mask=mask, labels=target).loss


def vit() -> nn.Module:
    return hf.ViTForImageClassification(hf.ViTConfig(**ENCODER, image_size=16, patch_size=4, num_labels=5)).train()


def swin() -> nn.Module:
    """Windows that are shifted by rolling, and layers dropped at random."""
    config = hf.SwinConfig(
        image_size=16, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=5
    )
    return hf.SwinForImageClassification(config).train()


def picture_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    return model(pixel_values=normal(draw, 4, 3, 16, 16), labels=torch.randint(5, (4,), generator=draw)).loss


def clip() -> nn.Module:
    text = {**ENCODER, "vocab_size": VOCABULARY, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 2}
    vision = {**ENCODER, "image_size": 16, "patch_size": 8}
    return hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)).train()


def contrastive_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    text = tokens(draw, 4, 8)
    text[:, -1] = 2  # the end, whose state is the text's
    return model(input_ids=text, pixel_values=normal(draw, 4, 3, 16, 16), return_loss=True).loss


def whisper() -> nn.Module:
    config = hf.WhisperConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=20,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, dropout=0.1,
    )  # fmt: skip
    return hf.WhisperForConditionalGeneration(config).train()


def speech_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    return model(input_features=normal(draw, 2, 8, 40), labels=tokens(draw, 2, 9)).loss


def wav2vec2() -> nn.Module:
    """Convolutions over raw sound, weight norm on one of them, and a CTC loss. Masks in time would come from numpy."""
    config = hf.Wav2Vec2Config(
        **ENCODER, vocab_size=20, conv_dim=(16, 16), conv_kernel=(10, 4), conv_stride=(5, 4), num_feat_extract_layers=2,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, mask_time_prob=0.0, pad_token_id=0,
        ctc_loss_reduction="mean", layerdrop=0.0,
    )  # fmt: skip
    return hf.Wav2Vec2ForCTC(config).train()


def sound_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    return model(input_values=normal(draw, 2, 640), labels=tokens(draw, 2, 6, high=20)).loss


def in_groups(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW as most fine-tuning has it: no decay of vectors, which are a group of their own."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))


def frozen_step(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
    """Fine-tuning of the upper half: the lower one is frozen and gets no gradients."""
    assert optimizer is not None
    language_loss(model, draw_of(model)).backward()
    torch.nn.utils.clip_grad_norm_([parameter for parameter in model.parameters() if parameter.requires_grad], 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def frozen_gpt2() -> nn.Module:
    model: Any = gpt2(attn_implementation="eager")
    model.transformer.wte.requires_grad_(False)
    model.transformer.h[0].requires_grad_(False)
    return model


LIBRARY = (
    Network("gpt2-dropout", gpt2, trains(language_loss), in_groups),
    Network("gpt2-half-frozen", frozen_gpt2, frozen_step, adamw()),
    Network("llama-gqa", llama, trains(language_loss), adamw(foreach=True)),
    Network("llama-packed-checkpointed", checkpointed_llama, trains(packed_loss), adamw(fused=True, lr=1e-2)),
    Network("gemma2-softcap", gemma2, trains(language_loss), adamw()),
    Network("mixtral-moe", mixtral, trains(language_loss), adamw()),
    Network("qwen3-moe-grouped", qwen3_moe, trains(language_loss), adamw()),
    Network("qwen3-next-delta", qwen3_next, trains(language_loss), adamw()),
    Network("mamba-slow", mamba, trains(language_loss), adamw()),
    Network("bert-padded", bert, trains(padded_loss), adamw()),
    Network("t5", t5, trains(translation_loss), lambda model: torch.optim.Adafactor(model.parameters())),
    Network("vit", vit, trains(picture_loss), sgd(momentum=0.9, nesterov=True)),
    Network("swin", swin, trains(picture_loss), adamw()),
    Network("clip", clip, trains(contrastive_loss), adamw()),
    Network("whisper", whisper, trains(speech_loss), adamw()),
    Network("wav2vec2-ctc", wav2vec2, trains(sound_loss), adamw()),
    Network("llama-decode", lambda: llama().eval(), infers(decodes)),
    Network("llama-generate", lambda: llama().eval(), infers(generates(do_sample=False))),
    Network("gpt2-sample", lambda: gpt2().eval(), infers(generates(do_sample=True, top_k=20, temperature=0.8))),
    Network("t5-beams", lambda: t5().eval(), infers(generates(num_beams=3, do_sample=False))),
)
