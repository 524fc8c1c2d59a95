"""Models of diffusers, built from tiny configurations: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import diffusers
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from .network import Network, adamw, infers, normal, trains

SIDE, TEXT = 16, 24  # of pictures and latents, and of what text gives
UNET: dict[str, Any] = {
    "sample_size": SIDE, "block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8,
    "attention_head_dim": 8,
}  # fmt: skip


def unet() -> nn.Module:
    return diffusers.UNet2DModel(
        in_channels=3, out_channels=3, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"), dropout=0.1, **UNET,
    ).train()  # fmt: skip


def conditional_unet() -> nn.Module:
    return diffusers.UNet2DConditionModel(
        in_channels=4, out_channels=4, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=TEXT, **UNET,
    ).train()  # fmt: skip


def autoencoder() -> nn.Module:
    """With pixels before channels in memory."""
    model = diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(16, 32), layers_per_block=1, latent_channels=4, norm_num_groups=8, sample_size=SIDE,
    )  # fmt: skip
    return model.to(memory_format=torch.channels_last).train()


def dit() -> nn.Module:
    return diffusers.DiTTransformer2DModel(
        num_attention_heads=2, attention_head_dim=16, in_channels=4, out_channels=4, num_layers=2, sample_size=8,
        patch_size=2, num_embeds_ada_norm=10, norm_num_groups=8,
    ).train()  # fmt: skip


def sd3() -> nn.Module:
    """Text and picture in one attention, with weights of their own."""
    return diffusers.SD3Transformer2DModel(
        sample_size=8, patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=TEXT, caption_projection_dim=32, pooled_projection_dim=20,
        pos_embed_max_size=8,
    ).train()  # fmt: skip


def noised(clean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A batch with noise, the noise and the times, drawn from torch's own generator as training scripts do."""
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=100)
    noise = torch.randn_like(clean)
    times = torch.randint(0, 100, (clean.shape[0],))
    return scheduler.add_noise(clean, noise, times), noise, times


def picture_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    noisy, noise, times = noised(normal(draw, 2, 3, SIDE, SIDE))
    return F.mse_loss(model(noisy, times).sample, noise)


def latent_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    """In bfloat16 but for the loss; a row's text is dropped now and then."""
    noisy, noise, times = noised(normal(draw, 2, 4, SIDE, SIDE))
    text = normal(draw, 2, 5, TEXT) * (torch.rand(2, 1, 1) > 0.3)
    with torch.autocast("cpu", torch.bfloat16):
        guess = model(noisy, times, encoder_hidden_states=text).sample
    return F.mse_loss(guess.float(), noise)


def autoencoder_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    picture = normal(draw, 2, 3, SIDE, SIDE).to(memory_format=torch.channels_last)
    posterior = model.encode(picture).latent_dist
    made = model.decode(posterior.sample()).sample
    return F.l1_loss(made, picture) + 1e-3 * posterior.kl().mean()


def class_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    noisy, noise, times = noised(normal(draw, 2, 4, 8, 8))
    labels = torch.randint(10, (2,), generator=draw)
    return F.mse_loss(model(noisy, timestep=times, class_labels=labels).sample, noise)


def flow_loss(model: Any, draw: torch.Generator) -> torch.Tensor:
    """A rectified flow: times of a logit-normal distribution, a velocity to learn."""
    clean, text, pooled = normal(draw, 2, 4, 8, 8), normal(draw, 2, 5, TEXT), normal(draw, 2, 20)
    noise, time = torch.randn_like(clean), torch.sigmoid(torch.randn(2))
    mixed = torch.lerp(clean, noise, time[:, None, None, None])
    guess = model(mixed, encoder_hidden_states=text, pooled_projections=pooled, timestep=1000 * time).sample
    return F.mse_loss(guess, noise - clean)


def samples(model: Any, draw: torch.Generator) -> None:
    """Three steps of DDIM with guidance, which doubles the batch, and noise again in every step."""
    scheduler = diffusers.DDIMScheduler(num_train_timesteps=100)
    scheduler.set_timesteps(3)
    text = torch.cat([torch.zeros(1, 5, TEXT), normal(draw, 1, 5, TEXT)])
    latent = torch.randn(1, 4, SIDE, SIDE) * scheduler.init_noise_sigma
    for time in scheduler.timesteps:
        without, given = model(torch.cat([latent] * 2), time, encoder_hidden_states=text).sample.chunk(2)
        guess = without + 5.0 * (given - without)
        latent = scheduler.step(guess, time, latent, eta=0.5).prev_sample


DIFFUSION = (
    Network("unet-diffusion", unet, trains(picture_loss), adamw()),
    Network("unet-text-autocast", conditional_unet, trains(latent_loss), adamw(foreach=True)),
    Network("autoencoder-kl", autoencoder, trains(autoencoder_loss), adamw()),
    Network("dit", dit, trains(class_loss), adamw()),
    Network("sd3-flow", sd3, trains(flow_loss), adamw()),
    Network("ddim-sampling", lambda: conditional_unet().eval(), infers(samples)),
)
