"""GGUF files as llama.cpp's converters write them, made with their library from a model of `transformers`."""

import gguf
import numpy as np
from tests.decoder.families import checkpoint_names

ARCHITECTURES = {"qwen3_moe": "qwen3moe", "mistral": "llama"}


def write_gguf(path, model, *, divisors=None, tokenizer=None, **extra):
    """The weights and settings of a model; `extra` are further keys after the architecture, `tokenizer` those of it."""
    config = model.config
    name = ARCHITECTURES.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(str(path), name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    for key, value in extra.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{name}.{key.replace('__', '.')}", value)
    for key, value in (tokenizer or {}).items():
        add = {int: writer.add_uint32, bool: writer.add_bool, str: writer.add_string, list: writer.add_array}
        add[type(value)](key, value)
    names = gguf.get_tensor_name_map(
        next(arch for arch, spelled in gguf.MODEL_ARCH_NAMES.items() if spelled == name), config.num_hidden_layers
    )
    for tensor, array in stored(model, name):
        writer.add_tensor(names.get_name(tensor, try_suffixes=(".weight", ".bias")), array)
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", np.asarray(divisors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stored(model, architecture):
    """The tensors as GGUF has them: rows of q and k interleaved, norms plus one, experts of a layer in one."""
    config = model.config
    state = {name: value.detach().numpy() for name, value in checkpoint_names(model.state_dict()).items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    experts = {}
    for name, value in state.items():
        if ".experts." in name:
            stem, _, rest = name.partition(".experts.")
            number, _, kind = rest.partition(".")
            experts.setdefault(f"{stem}.experts.{kind}", {})[int(number)] = value
        elif architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            halves = value.reshape(heads, 2, -1, *value.shape[1:])
            yield name, np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(value.shape)
        elif architecture.startswith("gemma") and name.endswith("norm.weight"):
            yield name, value + 1
        else:
            yield name, value
    for name, parts in experts.items():
        yield name, np.stack([parts[number] for number in sorted(parts)])
