"""`firstdrift trace`: run a language model's checkpoint, and save what its stages compute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...core.sites import shown as escaped
from ...core.stages import DEFAULT_LAYERS, default_directory
from ..options import Command, counted, print_json, progress, say, sizes

if TYPE_CHECKING:
    from ...decoder.tracing_checkpoints import Traced

LISTED = 40  # files shown; --json has all of them


@click.command("trace", cls=Command, short_help="Run a language model and save what its stages compute.")
@click.argument("model", metavar="MODEL")
@click.option(
    "--save-tensor", "stages", required=True, metavar="STAGES",
    help="Comma list, or all; `weights` adds their weights.",
)  # fmt: skip
@click.option(
    "--save-tensor-dir", "--output", "directory", metavar="DIR", help="Directory.  [default: MODEL's name, -trace]"
)
@click.option(
    "--save-tensor-layers", "--layer", "layers", default=DEFAULT_LAYERS, show_default=True, metavar="START..END",
    help="Layers, without END.",
)  # fmt: skip
@click.option("--prompt", metavar="TEXT", help="Input text.  [default: What is 2+2?]")
@click.option("--tokens", metavar="IDS", help="Input as comma list of token ids.")
@click.option("--generate", type=click.IntRange(min=1), metavar="N", help="Decode N tokens greedily, a step each.")
@click.option("--teacher", metavar="IDS", help="Feed these tokens instead of the chosen ones.")
@click.option(
    "--engine", type=click.Choice(["decoder", "transformers"]), default="decoder", show_default=True,
    help="Implementation to run.",
)  # fmt: skip
@click.option(
    "--format", type=click.Choice(["aprt", "trace"]), default="aprt", show_default=True,
    help="Stage files, or a trace with shapes, dtypes and steps.",
)  # fmt: skip
@click.option(
    "--dtype", type=click.Choice(["f32", "bf16", "f16", "f64"]), default="f32", show_default=True,
    help="Compute dtype.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Overwrite an existing trace.")
def command(
    model: str, stages: str, directory: str | None, layers: str, prompt: str | None, tokens: str | None,
    generate: int | None, teacher: str | None, engine: str, format: str, dtype: str, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run a checkpoint on a prompt, and save the tensors of the named stages.

    MODEL is an .apr or .gguf file, a Hugging Face directory, or a safetensors file with its config.json beside it.

    Stages: embedding, attn_norm, qkv_matmul, qkv_bias, q_post_rope, k_post_rope, attn_scores, attn_softmax, attention,
    attn_out, post_attn_residual, ffn_norm, ffn_gate, ffn_up, ffn_silu, ffn_swigl, ffn_out, post_ffn_residual (or
    layer_output), moe_router, moe_ffn_out, moe_router_indices, final_norm, lm_head.

    Exit codes: 0 saved; 2 could not; 3 internal error.

    \b
    firstdrift trace model.gguf --save-tensor all --save-tensor-dir ours
    firstdrift trace model.gguf --save-tensor all --save-tensor-dir theirs --engine transformers
    firstdrift diff theirs ours
    """
    from ...decoder.tracing_checkpoints import perform, prepare

    if prompt is not None and tokens is not None:
        raise click.UsageError("--prompt and --tokens both say what the model reads; give one")
    asked = prepare(
        Path(model), stages, layers, Path(directory) if directory else default_directory(model), prompt=prompt,
        tokens=tokens, generate=generate, teacher=teacher, engine=engine, format=format, dtype=dtype, force=force,
    )  # fmt: skip
    traced = perform(asked, loading=progress, recording=counted)
    if as_json:
        print_json(traced.to_json())
    else:
        say(text_of(traced))


def text_of(traced: Traced) -> str:
    """The files with their sizes, what was read, what was chosen."""
    asked, files = traced.asked, traced.files
    width = max((len(path.as_posix()) for path, _ in files[:LISTED]), default=0)
    lines = [f"{path.as_posix():<{width}}  {sizes(size):>9}" for path, size in files[:LISTED]]
    if len(files) > LISTED:
        lines.append(f"... and {len(files) - LISTED} more (--json lists them)")
    lines.append(f"{asked.engine}: {traced.weights}")
    what = "next token" if asked.steps == 1 else f"{asked.steps} tokens"
    chosen = " ".join("none, for logits are NaN" if token is None else str(token) for token in traced.chosen)
    shown = "" if traced.text is None else f", {traced.text!r}"
    lines.append(f"read {len(asked.prompt)} tokens; {what} by the largest logit: {chosen}{shown}")
    if asked.teacher:
        lines.append(f"{traced.agreeing} of {len(asked.teacher)} given tokens are what it would have chosen")
    total = sizes(sum(size for _, size in files))
    lines.append(f"{traced.tensors} tensors, {total}, in {asked.plan.directory}")
    return "\n".join([*lines, *(f"note: {escaped(note)}" for note in traced.notes)])
