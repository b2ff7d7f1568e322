"""A network with one hidden layer, its parameters in one flat vector, so that they travel as one piece of bytes."""

import digits
import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

_PIXELS, _HIDDEN = 64, 48
_SHAPES = ((_PIXELS, _HIDDEN), (1, _HIDDEN), (_HIDDEN, digits.CLASSES), (1, digits.CLASSES))
SIZE = sum(rows * columns for rows, columns in _SHAPES)


def initial(seed: int) -> Vector:
    """Return random parameters (He et al., 2015, https://arxiv.org/abs/1502.01852)."""
    random = np.random.default_rng(seed)
    parts = [
        random.normal(0, np.sqrt(2 / rows), rows * columns) if rows > 1 else np.zeros(columns)
        for rows, columns in _SHAPES
    ]
    return np.concatenate(parts).astype(np.float32)


def gradient(parameters: Vector, pictures: digits.Pictures, labels: digits.Labels) -> tuple[float, Vector]:
    """Return the mean cross entropy over a batch, and its gradient of shape (SIZE,)."""
    _, _, weights_out, _ = _layers(parameters)
    hidden, scores = _forward(parameters, pictures)
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances = scores / scores.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(-np.log(chances[rows, labels] + 1e-9).mean())
    chances[rows, labels] -= 1
    out = chances / len(labels)
    back = (out @ weights_out.T) * (hidden > 0)
    parts = (pictures.T @ back, back.sum(axis=0), hidden.T @ out, out.sum(axis=0))
    return loss, np.concatenate([part.ravel() for part in parts]).astype(np.float32)


def accuracy(parameters: Vector, pictures: digits.Pictures, labels: digits.Labels) -> float:
    """Return the part of the pictures whose digit is recognised."""
    _, scores = _forward(parameters, pictures)
    return float((scores.argmax(axis=1) == labels).mean())


def _layers(parameters: Vector) -> list[Vector]:
    ends = np.cumsum([rows * columns for rows, columns in _SHAPES])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(parameters, ends), _SHAPES, strict=True)]


def _forward(parameters: Vector, pictures: digits.Pictures) -> tuple[Vector, Vector]:
    weights, bias, weights_out, bias_out = _layers(parameters)
    hidden: Vector = np.maximum(pictures @ weights + bias, 0)
    return hidden, hidden @ weights_out + bias_out
