"""For every operation of the library: tensors, settings, and torch's own module or function for it."""

import torch
from tests.program.written import numbers
from torch import nn
from torch.nn import functional

X, IMAGE, SIGNAL = numbers(4, 6), numbers(2, 4, 8, 7), numbers(3, 4, 10)
TOKENS = torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])
HEADS = numbers(2, 5, 4, 6)  # batch, tokens, heads, size
NORM = {"weight": 1 + numbers(6, seed=3) / 4, "bias": numbers(6, seed=4)}
CHANNELS = {"weight": 1 + numbers(4, seed=3) / 4, "bias": numbers(4, seed=4)}
STATISTICS = {"running_mean": numbers(4, seed=5), "running_var": numbers(4, seed=6, low=0.5)}


def with_state(module, **weights):
    """A module of torch with these weights in place of its own."""
    return lambda *x: torch.func.functional_call(module.double(), weights, x)


def rms(x, weight=None, eps=1e-5, offset=0.0):
    return functional.rms_norm(x, x.shape[-1:], None if weight is None else weight + offset, eps)


def causal(new, every, window=None):
    seen = torch.ones(new, every).tril(every - new).bool()
    return seen if window is None else seen & ~torch.ones(new, every).tril(every - new - window).bool()


def rotated(x, theta, position=0, frequencies=None):
    """RoPE by complex numbers, dimension i with i + half."""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half) if frequencies is None else frequencies
    angles = torch.outer(torch.arange(position, position + x.shape[1], dtype=torch.float64), frequencies)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((turned.real, turned.imag), -1)


def attended(q, k, v, **how):
    return functional.scaled_dot_product_attention(q, k, v, **how)


def attended_together(q, k, v):
    q, k, v = (one.unflatten(-1, (-1, 3)).transpose(1, 2) for one in (q, k, v))
    return attended(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)


def recurrent(kind, **how):
    module = getattr(nn, kind)(6, 5, **how)
    names = [name for name, _ in module.named_parameters()]
    drawn = {name: 0.3 * numbers(*shape.shape, seed=at) for at, (name, shape) in enumerate(module.named_parameters())}
    return drawn, lambda x, **w: with_state(module, **{name: w[name] for name in names})(x)[0]


def experts(share, numbers_, tokens, weight):
    total = torch.zeros_like(tokens)
    for place in range(share.shape[-1]):
        for row in range(tokens.shape[1]):
            gate, up, down = weight[3 * int(numbers_[0, row, place]) :][:3]
            x = tokens[0, row]
            total[0, row] = total[0, row] + share[0, row, place] * (functional.silu(x @ gate.T) * (x @ up.T)) @ down.T
    return total


def llama3(size, theta, factor, low, high, original):
    """Llama 3's frequencies as its paper's code has them, one by one."""
    found = []
    for pair in range(size // 2):
        frequency = theta ** (-2 * pair / size)
        length = 2 * torch.pi / frequency
        share = (original / length - low) / (high - low)
        share = min(1.0, max(0.0, share))
        found.append((1 - share) * frequency / factor + share * frequency)
    return torch.tensor(found, dtype=torch.float64)


LSTM, GRU, RNN = (
    recurrent("LSTM", num_layers=2, bidirectional=True),
    recurrent("GRU", batch_first=True),
    recurrent("RNN"),
)
QKV = [numbers(2, 3, 5, 4, seed=at) for at in range(3)]
ROUTES = torch.tensor([[[1, 0], [0, 2], [2, 1]]])

# name: inputs, weights, settings, torch's own
CASES = {
    "Linear": ([X], {"weight": numbers(3, 6), "bias": numbers(3)}, {}, functional.linear),
    "Gemm": ([X], {"weight": numbers(6, 3), "bias": numbers(3)}, {"alpha": 0.5, "beta": 2.0},
             lambda x, weight, bias: torch.addmm(bias, x, weight, beta=2.0, alpha=0.5)),
    "MatMul": ([HEADS, numbers(2, 5, 6, 3)], {}, {}, torch.matmul),
    "BiasAdd": ([X], {"bias": numbers(6)}, {}, lambda x, bias: x + bias),
    "Embedding": ([TOKENS], {"weight": numbers(12, 5)}, {}, functional.embedding),
    "Conv1d": ([IMAGE], {"weight": numbers(6, 2, 3, 3), "bias": numbers(6)},
               {"stride": [2, 1], "padding": [1, 0], "dilation": [1, 2], "groups": 2},
               lambda x, weight, bias: functional.conv2d(x, weight, bias, (2, 1), (1, 0), (1, 2), 2)),
    "ConvTranspose1d": ([SIGNAL], {"weight": numbers(4, 3, 5), "bias": numbers(3)},
                        {"stride": [2], "padding": [1], "output_padding": [1]},
                        lambda x, weight, bias: functional.conv_transpose1d(x, weight, bias, 2, 1, 1)),
    "LSTM": ([numbers(3, 2, 6)], LSTM[0], {"hidden_size": 5, "num_layers": 2, "bidirectional": True}, LSTM[1]),
    "GRU": ([numbers(2, 7, 6)], GRU[0], {"hidden_size": 5, "batch_first": True}, GRU[1]),
    "RNN": ([numbers(7, 2, 6)], RNN[0], {"hidden_size": 5}, RNN[1]),
    "LayerNorm": ([X], NORM, {"eps": 1e-3}, lambda x, **w: with_state(nn.LayerNorm(6, 1e-3), **w)(x)),
    "RMSNorm": ([X], {"weight": NORM["weight"]}, {"eps": 1e-3},
                lambda x, **w: with_state(nn.RMSNorm(6, 1e-3), **w)(x)),
    "AddNorm": ([X, numbers(4, 6, seed=9)], {"weight": NORM["weight"]}, {"eps": 1e-3, "offset": 1.0},
                lambda x, stream, weight: stream + rms(x, weight, 1e-3, 1.0)),
    "BatchNorm1d": ([IMAGE], CHANNELS | STATISTICS, {"eps": 1e-3},
                    lambda x, **w: with_state(nn.BatchNorm2d(4, 1e-3).eval(), **w)(x)),
    "GroupNorm": ([IMAGE], CHANNELS, {"num_groups": 2, "eps": 1e-3},
                  lambda x, **w: with_state(nn.GroupNorm(2, 4, 1e-3), **w)(x)),
    "InstanceNorm1d": ([SIGNAL], CHANNELS, {"eps": 1e-3},
                       lambda x, **w: with_state(nn.InstanceNorm1d(4, 1e-3, affine=True), **w)(x)),
    "ReLU": ([X], {}, {}, nn.ReLU()),
    "ReLU6": ([4 * X], {}, {}, nn.ReLU6()),
    "SiLU": ([X], {}, {}, nn.SiLU()),
    "Swish": ([X], {}, {}, nn.SiLU()),
    "Sigmoid": ([X], {}, {}, nn.Sigmoid()),
    "Tanh": ([X], {}, {}, nn.Tanh()),
    "Mish": ([X], {}, {}, nn.Mish()),
    "SELU": ([X], {}, {}, nn.SELU()),
    "Hardswish": ([2 * X], {}, {}, nn.Hardswish()),
    "Hardsigmoid": ([2 * X], {}, {}, nn.Hardsigmoid()),
    "Softsign": ([X], {}, {}, nn.Softsign()),
    "LogSigmoid": ([X], {}, {}, nn.LogSigmoid()),
    "Exp": ([X], {}, {}, torch.exp),
    "Log": ([numbers(4, 6, low=0.1)], {}, {}, torch.log),
    "Sqrt": ([numbers(4, 6, low=0.1)], {}, {}, torch.sqrt),
    "Erf": ([X], {}, {}, torch.erf),
    "Neg": ([X], {}, {}, torch.neg),
    "Abs": ([X], {}, {}, torch.abs),
    "Sin": ([X], {}, {}, torch.sin),
    "Cos": ([X], {}, {}, torch.cos),
    "Reciprocal": ([numbers(4, 6, low=0.1)], {}, {}, torch.reciprocal),
    "QuickGELU": ([X], {}, {}, lambda x: x * torch.special.expit(1.702 * x)),
    "ReLUSquared": ([X], {}, {}, lambda x: x.clamp(min=0) ** 2),
    "Tanhshrink": ([X], {}, {}, nn.Tanhshrink()),
    "Identity": ([X], {}, {}, lambda x: x + 0),
    "GELU": ([X], {}, {"approximate": "tanh"}, nn.GELU("tanh")),
    "LeakyReLU": ([X], {}, {"negative_slope": 0.2}, nn.LeakyReLU(0.2)),
    "PReLU": ([SIGNAL], {"weight": numbers(4, seed=2)}, {}, functional.prelu),
    "CELU": ([X], {}, {"alpha": 0.7}, nn.CELU(0.7)),
    "ELU": ([X], {}, {"alpha": 0.7}, nn.ELU(0.7)),
    "Softplus": ([9 * X], {}, {"beta": 2.0, "threshold": 4.0}, nn.Softplus(2.0, 4.0)),
    "Hardtanh": ([X], {}, {"min_val": -0.5, "max_val": 0.75}, nn.Hardtanh(-0.5, 0.75)),
    "Softmax": ([IMAGE], {}, {"dim": 1}, nn.Softmax(1)),
    "LogSoftmax": ([IMAGE], {}, {"dim": 1}, nn.LogSoftmax(1)),
    "Softmin": ([IMAGE], {}, {"dim": 1}, nn.Softmin(1)),
    "GLU": ([IMAGE], {}, {"dim": 1}, nn.GLU(1)),
    "Add": ([X, numbers(4, 6, seed=9), numbers(6, seed=8)], {}, {}, lambda a, b, c: a + b + c),
    "Sub": ([X, numbers(4, 6, seed=9)], {}, {}, torch.sub),
    "Mul": ([X, numbers(4, 1, seed=9)], {}, {}, torch.mul),
    "Div": ([X, numbers(4, 6, low=0.3)], {}, {}, torch.div),
    "Concat": ([X, numbers(4, 3)], {}, {"dim": 1}, lambda *x: torch.cat(x, 1)),
    "Reshape": ([IMAGE], {}, {}, nn.Flatten()),
    "Transpose": ([IMAGE], {}, {"perm": [0, 2, 3, 1]}, lambda x: torch.movedim(x, 1, 3)),
    "Select": ([IMAGE], {}, {"dim": 1, "index": 2}, lambda x: x[:, 2]),
    "Slice": ([IMAGE], {}, {"dim": 1, "start": 1, "end": 3}, lambda x: x[:, 1:3]),
    "Mean": ([IMAGE], {}, {"dim": [2, 3]}, lambda x: x.flatten(2).mean(2)),
    "MaxPool1d": ([IMAGE], {}, {"kernel_size": [3, 2], "stride": [2, 2], "padding": [1, 0], "ceil_mode": True},
                  nn.MaxPool2d((3, 2), (2, 2), (1, 0), ceil_mode=True)),
    "AvgPool1d": ([IMAGE], {}, {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
                  nn.AvgPool2d(3, 2, 1, count_include_pad=False)),
    "AdaptiveAvgPool1d": ([IMAGE], {}, {}, nn.AdaptiveAvgPool2d((3, 2))),
    "AdaptiveMaxPool1d": ([SIGNAL], {}, {}, nn.AdaptiveMaxPool1d(4)),
    "ScaledDotProductAttention": (QKV, {}, {"is_causal": True}, lambda q, k, v: attended(q, k, v, is_causal=True)),
    "Heads": ([numbers(2, 5, 24)], {"weight": numbers(4, low=0.5)},
              {"heads": 3, "head_dim": 4, "start": 8, "eps": 1e-3},
              lambda x, weight: rms(x[..., 8:20].reshape(2, 5, 3, 4), weight, 1e-3)),
    "RoPE": ([HEADS], {}, {"theta": 1e4, "position": 3, "scaling": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                           "high_freq_factor": 4.0, "original_positions": 32},
             lambda x: rotated(x, 1e4, 3, llama3(6, 1e4, 8.0, 1.0, 4.0, 32))),
    "AttentionScores": ([HEADS, HEADS[:, :, :2] * 1.5, HEADS[:, :, :2] * 0.5], {}, {"scale": 0.25},
                        lambda q, *k: torch.einsum("bthd,bshd->bhts", q, torch.cat(k, 1).repeat_interleave(2, 2)) / 4),
    "CausalSoftmax": ([numbers(2, 3, 4, 6)], {}, {"softcap": 1.5, "window": 3},
                      lambda x: (1.5 * torch.tanh(x / 1.5)).masked_fill(~causal(4, 6, 3), -torch.inf).softmax(-1)),
    "AttentionMix": ([numbers(2, 4, 5, 5, low=0.1), numbers(2, 5, 16)], {}, {"kv_heads": 2, "head_dim": 3},
                     lambda p, qkv: torch.einsum(
                         "bhts,bshd->bthd", p, qkv[..., -6:].reshape(2, 5, 2, 3).repeat_interleave(2, 2)
                     ).flatten(2)),
    "Router": ([numbers(1, 3, 6)], {"weight": numbers(5, 6)}, {"per_token": 2, "normalised": True},
               lambda x, weight: (x @ weight.T).topk(2).values.softmax(-1)),
    "Experts": ([numbers(1, 3, 2, low=0.1), ROUTES, numbers(1, 3, 6)],
                {"weight": [0.4 * numbers(*shape, seed=at) for at in range(3) for shape in ((7, 6), (7, 6), (6, 7))]},
                {"activation": "silu"}, experts),
    "CrossEntropyLoss": ([X, torch.tensor([1, -100, 5, 0])], {}, {"reduction": "sum", "label_smoothing": 0.1},
                         nn.CrossEntropyLoss(reduction="sum", label_smoothing=0.1)),
    "NLLLoss": ([X, torch.tensor([1, 2, 5, 0])], {}, {}, nn.NLLLoss()),
    "MSELoss": ([X, numbers(4, 6, seed=9)], {}, {"reduction": "sum"}, nn.MSELoss(reduction="sum")),
    "L1Loss": ([X, numbers(4, 6, seed=9)], {}, {}, nn.L1Loss()),
    "BCEWithLogitsLoss": ([X, numbers(4, 6, seed=9).sigmoid()], {}, {}, nn.BCEWithLogitsLoss()),
}  # fmt: skip
# Further ways in which one of these is met: another name, another framework's words, what shapes tell.
FURTHER = {
    "Conv, padding by shape": ("Conv1d", [SIGNAL], {"weight": numbers(5, 4, 3)}, {},
                               lambda x, weight: functional.conv1d(x, weight, padding=1)),
    "Conv of ONNX": ("Conv", [IMAGE], {"W": numbers(3, 4, 3, 3)},
                     {"strides": [2, 2], "pads": [1, 0, 0, 1], "group": 1},
                     lambda x, **w: functional.conv2d(functional.pad(x, (0, 1, 1, 0)), w["W"], stride=2)),
    "Conv, circular": ("Conv1d", [SIGNAL], {"weight": numbers(5, 4, 3)}, {"padding": 1, "padding_mode": "circular"},
                       lambda x, weight: with_state(
                           nn.Conv1d(4, 5, 3, padding=1, padding_mode="circular", bias=False), weight=weight)(x)),
    "Conv1D of GPT-2": ("Conv1D", [X], {"weight": numbers(6, 3), "bias": numbers(3)}, {},
                        lambda x, weight, bias: x @ weight + bias),
    "Dense of flax": ("Dense", [X], {"kernel": numbers(6, 3), "bias": numbers(3)}, {},
                      lambda x, kernel, bias: x @ kernel + bias),
    "Linear of several": ("Linear", [X], {"weight": [numbers(3, 6), numbers(2, 6)]}, {},
                          lambda x, weight: torch.cat([x @ one.T for one in weight], -1)),
    "Linear with a softcap": ("Linear", [X], {"weight": numbers(3, 6)}, {"softcap": 2.0},
                              lambda x, weight: 2.0 * torch.tanh(x @ weight.T / 2.0)),
    "MatMul with a weight": ("MatMul", [X], {"weight": numbers(6, 3)}, {}, lambda x, weight: x @ weight),
    "LlamaRMSNorm": ("LlamaRMSNorm", [X], {"weight": NORM["weight"]}, {"variance_epsilon": 1e-2},
                     lambda x, weight: rms(x, weight, 1e-2)),
    "LayerNormalization of ONNX": ("LayerNormalization", [X], {"scale": NORM["weight"], "B": NORM["bias"]},
                                   {"epsilon": 1e-2},
                                   lambda x, **w: functional.layer_norm(x, (6,), w["scale"], w["B"], 1e-2)),
    "LayerNorm over two axes": ("LayerNorm", [IMAGE], {"weight": numbers(8, 7)}, {},
                                lambda x, weight: functional.layer_norm(x, (8, 7), weight)),
    "BatchNorm in training": ("BatchNorm2d", [IMAGE], CHANNELS, {"training": True, "eps": 1e-3},
                              lambda x, **w: functional.batch_norm(x, None, None, **w, training=True, eps=1e-3)),
    "torch.nn.functional.gelu": ("torch.nn.functional.gelu", [X], {}, {}, nn.GELU()),
    "aten.relu.default": ("aten.relu.default", [X], {}, {}, nn.ReLU()),
    "LeakyRelu of ONNX": ("LeakyRelu", [X], {}, {"alpha": 0.3}, nn.LeakyReLU(0.3)),
    "MaxPool by shape": ("MaxPool1d", [SIGNAL], {}, {}, nn.MaxPool1d(5)),
    "GlobalAveragePool": ("GlobalAveragePool", [IMAGE], {}, {}, nn.AdaptiveAvgPool2d(1)),
    "Dropout in evaluation": ("Dropout", [X], {}, {"p": 0.5, "training": False}, lambda x: x + 0),
    "Attention with a mask": ("SDPA", [*QKV, causal(5, 5)], {}, {"scale": 0.3},
                              lambda q, k, v, mask: attended(q, k, v, attn_mask=mask, scale=0.3)),
    "Attention with heads together": ("SDPA", [numbers(2, 5, 12), numbers(2, 5, 6), numbers(2, 5, 6)], {},
                                      {"heads": 4, "is_causal": True}, attended_together),
    "Heads as they are": ("Heads", [numbers(2, 5, 24)], {}, {"heads": 3, "head_dim": 4},
                          lambda x: x[..., :12].reshape(2, 5, 3, 4)),
    "RoPE, adjacent": ("RoPE", [HEADS], {}, {"theta": 100.0, "interleaved": True},
                       lambda x: rotated(x[..., [0, 2, 4, 1, 3, 5]], 100.0)[..., [0, 3, 1, 4, 2, 5]]),
    "RoPE, partial": ("RoPE", [HEADS], {}, {"theta": 100.0, "partial": 0.67},
                      lambda x: torch.cat((rotated(x[..., :4], 100.0), x[..., 4:]), -1)),
    "RoPE, divided": ("RoPE", [HEADS], {}, {"theta": 100.0, "divisors": [1.0, 2.0, 4.0]},
                      lambda x: rotated(x, 0, 0, 100.0 ** (-torch.arange(3.0).double() / 3) / 2.0 ** torch.arange(3))),
    "Router's numbers": ("Router", [numbers(1, 3, 6)], {"weight": numbers(5, 6)},
                         {"per_token": 2, "normalised": True, "indices": True},
                         lambda x, weight: (x @ weight.T).topk(2).indices.float()),
}  # fmt: skip
TAUGHT = {"SGD", "Adam", "AdamW", "RunningStatistics"}  # by traces of training, in test_library_training.py
ALL = {name: (name, *case) for name, case in CASES.items()} | FURTHER
