"""The papers' networks. A factory takes the shape of one row and the number of outputs."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from cotune.errors import UsageError

#: Images at least this wide and high: less does not survive two halvings and a convolution.
SMALLEST_IMAGE = 8
#: A model from outside says how many layers it has, and each takes time and memory to build.
MOST_LAYERS = 100


def perceptron(shape: tuple[int, ...], outputs: int, *, hidden: int, layers: int) -> nn.Module:
    """Fully connected layers of `hidden` rectified units; McMahan's 2NN has two of 200."""
    _check_layers(layers)
    widths = [math.prod(shape), *[hidden] * layers]
    body: list[nn.Module] = [nn.Flatten()]
    for narrow, wide in pairwise(widths):
        body += [nn.Linear(narrow, wide), nn.ReLU(), nn.Dropout(0.0)]
    return nn.Sequential(*body, nn.Linear(widths[-1], outputs))


def convolutional(
    shape: tuple[int, ...], outputs: int, *, network: str, channels: int, hidden: int
) -> nn.Module:
    """FedEx's two networks for images (appendix D): that for CIFAR-10, or that for FEMNIST.

    `cifar` has three 3x3 convolutions of 32, 64 and 64 channels and a layer of 64 units; `femnist`
    two 5x5 ones of 32 and 64 channels and a layer of 1,024. `channels` is the first one's number,
    the others keep their ratio to it.
    """
    if len(shape) not in (2, 3) or min(shape[:2]) < SMALLEST_IMAGE:
        raise UsageError(
            f"cnn takes images of {SMALLEST_IMAGE} x {SMALLEST_IMAGE} pixels or more, as rows of "
            f"the shape (height, width) or (height, width, colours), not {shape}"
        )
    height, width = shape[:2]
    colours = shape[2] if len(shape) == 3 else 1
    small, large = channels, 2 * channels
    if network == "cifar":
        wide = 3
        last = [nn.Conv2d(large, large, 3, padding=1), nn.ReLU()]
    elif network == "femnist":
        wide, last = 5, []
    else:
        raise UsageError(f"network is {network!r}: choose cifar or femnist")
    # Maxima are taken before rectifying: the same, for a quarter of the work.
    convolutions = [
        *(nn.Conv2d(colours, small, wide, padding="same"), _ChannelsLast()),
        *(nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(small, large, wide, padding="same"), nn.MaxPool2d(2), nn.ReLU()),
        *last,
    ]
    left = large * (height // 4) * (width // 4)
    head = [nn.Flatten(), nn.Linear(left, hidden), nn.ReLU(), nn.Dropout(0.0)]
    return nn.Sequential(_ChannelsFirst(), *convolutions, *head, nn.Linear(hidden, outputs))


def _check_layers(layers: int) -> None:
    if not 0 <= layers <= MOST_LAYERS:
        raise UsageError(f"layers is {layers}: give a number up to {MOST_LAYERS}")


class _ChannelsFirst(nn.Module):
    """Images as they lie in files (height, width, colours), by the names that convolutions use."""

    def forward(self, images: Tensor) -> Tensor:
        return images.unsqueeze(1) if images.dim() == 3 else images.permute(0, 3, 1, 2)


class _ChannelsLast(nn.Module):
    """The same values, laid out so that convolutions of few channels take less time."""

    def forward(self, images: Tensor) -> Tensor:
        return images.contiguous(memory_format=torch.channels_last)


class CharacterLSTM(nn.Module):
    """The next character after a text: an embedding, LSTM layers, and the last state read out."""

    def __init__(
        self, shape: tuple[int, ...], outputs: int, *, embedding: int, hidden: int, layers: int
    ) -> None:
        super().__init__()
        if len(shape) != 1:
            raise UsageError(f"char_lstm takes texts, as rows of character codes, not {shape}")
        _check_layers(layers)
        self.embedding = nn.Embedding(256, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, codes: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(codes.int()))
        read: Tensor = self.head(states[:, -1])
        return read


def set_dropout(module: nn.Module, share: float) -> None:
    """Dropout is a setting of the local training, so that arms can differ in it."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = share
        elif isinstance(part, nn.LSTM) and part.num_layers > 1:
            part.dropout = share
