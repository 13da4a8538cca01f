"""A network whose weights are one vector, and its local training: Loc_c of FedEx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from cotune.networks.modules import set_dropout
from cotune.networks.parts import Local

if TYPE_CHECKING:
    from cotune.data.schema import Schema

#: Rows that are judged at once.
JUDGED_AT_ONCE = 1024


class Network:
    """A module with all its weights in `flat`: first the parameters, then floating buffers.

    Parameters and gradients are views of two vectors, so that a step of gradient descent is a few
    operations on these, whatever the number of layers. The arithmetic is that of `torch.optim.SGD`.
    """

    def __init__(self, module: nn.Module, schema: Schema) -> None:
        self.module = module
        self._schema = schema
        self._classes = schema.task == "classification"
        self._loss: nn.Module = nn.CrossEntropyLoss() if self._classes else _Squares()
        parameters = [p for p in module.parameters() if p.requires_grad]
        trained = {id(p) for p in parameters}
        kept = [
            held
            for held in (*module.parameters(), *module.buffers())
            if id(held) not in trained and held.is_floating_point()
        ]
        self.flat = torch.cat([held.detach().reshape(-1) for held in (*parameters, *kept)])
        self._gradient = torch.zeros(sum(p.numel() for p in parameters))
        self._trained = self.flat[: len(self._gradient)]
        self.buffers = len(self.flat) - len(self._gradient)
        counters = [held for held in module.buffers() if not held.is_floating_point()]
        self._counters = [(held, held.clone()) for held in counters]
        self._normalises = any(
            isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules()
        )
        begin = 0
        for held in (*parameters, *kept):
            end = begin + held.numel()
            held.data = self.flat[begin:end].view(held.shape)
            if end <= len(self._gradient):
                held.grad = self._gradient[begin:end].view(held.shape)
            begin = end

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles are made anew: those of views would be no views any more."""
        return Network, (self.module, self._schema)

    def load(self, weights: np.ndarray) -> None:
        self.flat.copy_(torch.from_numpy(weights))
        for counter, begun in self._counters:
            counter.copy_(begun)

    @property
    def weights(self) -> np.ndarray:
        """A copy, float32."""
        copied: np.ndarray = self.flat.numpy().copy()
        return copied

    def train(
        self, X: Tensor, y: Tensor, how: Local, seed: int, drift: Tensor | None = None
    ) -> Tensor | None:
        """Loc_c: some epochs of stochastic gradient descent from the present weights.

        `drift` is added to every gradient: SCAFFOLD's c - c_i. With it the mean gradient is
        returned as it was before that and before momentum; that of buffers is 0.
        """
        torch.default_generator.manual_seed(seed % 2**63)  # torch.manual_seed takes longer
        set_dropout(self.module, how.dropout)
        self.module.train()
        weights, gradient = self._trained, self._gradient
        begun = weights.clone() if how.mu else None
        velocity = torch.zeros_like(weights) if how.momentum else None
        total = None if drift is None else torch.zeros_like(drift, dtype=torch.float64)
        steps = 0
        for _ in range(how.epochs):
            for batch in self._batches(len(y), how.batch_size):
                gradient.zero_()
                self._loss(self.module(X[batch]), y[batch]).backward()
                with torch.no_grad():
                    if how.weight_decay:
                        gradient.add_(weights, alpha=how.weight_decay)
                    if begun is not None:
                        gradient.add_(weights, alpha=how.mu).sub_(begun, alpha=how.mu)
                    if drift is not None and total is not None:
                        total[: len(gradient)] += gradient
                        gradient.add_(drift[: len(gradient)])
                    if velocity is not None:
                        gradient = velocity.mul_(how.momentum).add_(gradient)
                    weights.sub_(gradient, alpha=how.lr)
                    gradient = self._gradient
                steps += 1
        return None if total is None else total / steps

    def _batches(self, rows: int, size: int) -> list[Tensor]:
        """The rows in another order each time. A batch of one row cannot be normalised."""
        batches = list(torch.split(torch.randperm(rows), size))
        if self._normalises and len(batches) > 1 and len(batches[-1]) == 1:
            batches[-2:] = [torch.cat(batches[-2:])]
        return batches

    def target(self, y: np.ndarray) -> Tensor:
        """The target as `train` takes it: class codes, or numbers of mean 0 and deviation 1."""
        if self._classes:
            return torch.from_numpy(np.array(y, dtype=np.int64))
        scaled = (y - self._schema.target_mean) / self._schema.target_scale
        return torch.from_numpy(scaled.astype(np.float32))

    def predict(self, X: np.ndarray | Tensor) -> np.ndarray:
        """Class codes, or numbers in the target's own unit."""
        outputs = self._outputs(X)
        if not np.isfinite(outputs).all():
            return np.full(len(outputs), np.nan)
        if self._classes:
            codes: np.ndarray = outputs.argmax(axis=1)
            return codes
        numbers: np.ndarray = outputs[:, 0].astype(float)
        return numbers * self._schema.target_scale + self._schema.target_mean

    def predict_proba(self, X: np.ndarray | Tensor) -> np.ndarray:
        outputs = self._outputs(X).astype(float)
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        shares: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
        return shares

    def _outputs(self, X: np.ndarray | Tensor) -> np.ndarray:
        rows = X if isinstance(X, Tensor) else as_tensor(X)
        self.module.eval()
        with torch.inference_mode():
            parts = [self.module(part) for part in torch.split(rows, JUDGED_AT_ONCE)]
        outputs: np.ndarray = torch.cat(parts).numpy()
        return outputs


class _Squares(nn.Module):
    """Half the mean square, so that its gradient is the mean residual."""

    def forward(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs[:, 0] - y).square().mean() / 2


def as_tensor(values: np.ndarray) -> Tensor:
    """Rows for a network: amounts as float32, codes as they are; mapped files are copied."""
    kind = np.float32 if np.issubdtype(values.dtype, np.floating) else values.dtype
    return torch.from_numpy(np.array(values, dtype=kind))
