"""Graphs that are written with complex numbers and Fourier transforms, by name; their arguments are real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.unit.agents.playbook.operators_under_test import Case

fft = torch.fft


def _of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Case:
    inputs = {}
    for place, (name, shape) in enumerate(zip("abcd", shapes, strict=False)):
        generator = torch.Generator().manual_seed(place + sum(shape))
        inputs[name] = torch.randn(*shape, generator=generator)
    return Case(function, inputs)


def _rotary(queries: torch.Tensor, frequencies: torch.Tensor) -> torch.Tensor:
    """Rotary embeddings as the published code of Llama writes them."""
    angles = torch.outer(torch.arange(queries.shape[1], dtype=queries.dtype), frequencies)
    turns = torch.polar(torch.ones_like(angles), angles).view(1, queries.shape[1], 1, -1)
    pairs = torch.view_as_complex(queries.reshape(*queries.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(3)


def _filter(signal: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The global filter of a vision network: a product in the frequency domain."""
    spectrum = fft.rfft2(signal, dim=(1, 2), norm="ortho") * torch.view_as_complex(weights)
    return fft.irfft2(spectrum, s=signal.shape[1:3], dim=(1, 2), norm="ortho")


def _long_convolution(signal: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    points = 2 * signal.shape[-1]
    return fft.irfft(fft.rfft(signal, n=points) * fft.rfft(kernel, n=points), n=points)[..., : signal.shape[-1]]


def _spectrogram(signal: torch.Tensor) -> torch.Tensor:
    window = torch.hann_window(16, dtype=signal.dtype)
    return torch.stft(signal, 16, 8, window=window, return_complex=True).abs().square()


def _denoised(signal: torch.Tensor) -> torch.Tensor:
    """Frames, a gate on their spectra, and the signal of what is left."""
    window = torch.hann_window(16, dtype=signal.dtype)
    frames = torch.stft(signal, 16, 4, window=window, return_complex=True)
    return torch.istft(frames * torch.sigmoid(frames.abs() - 1), 16, 4, window=window)


def _quotients(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    return (torch.complex(first, second) / torch.complex(second, first) / 2 + (1 - 2j)).abs()


def complex_graphs() -> dict[str, Case]:
    """Rotary embeddings, mixing layers, filters, spectra, and arithmetic of complex numbers."""
    return {
        "rotary_complex": _of(_rotary, (2, 16, 3, 8), (4,)),
        "turned_by_exponential": _of(
            lambda a, b: (torch.view_as_complex(a) * torch.exp(1j * b)).real, (3, 5, 2), (3, 5)
        ),
        "mixing_layer": _of(lambda a: fft.fft(fft.fft(a, dim=-1), dim=-2).real, (2, 12, 20)),
        "global_filter": _of(_filter, (2, 6, 8, 3), (6, 5, 3, 2)),
        "long_convolution": _of(_long_convolution, (3, 4, 16), (4, 16)),
        "spectrogram": _of(_spectrogram, (2, 80)),
        "spectrogram_of_one_signal": _of(_spectrogram, (80,)),
        "parts_of_pairs": _of(lambda a: torch.view_as_complex(a).real * torch.view_as_complex(a * 2).imag, (3, 5, 2)),
        "denoised": _of(_denoised, (3, 60)),
        "odd_inverse": _of(lambda a: fft.irfft(fft.rfft(a) * 2.0, n=9), (4, 9)),
        "shifted_spectrum": _of(lambda a: fft.fftshift(fft.fft2(a)).abs(), (3, 10, 6)),
        "hermitian": _of(lambda a: fft.hfft(torch.complex(a, a)) + fft.ihfft(a).imag.sum(-1, keepdim=True), (3, 7)),
        "autocorrelation": _of(lambda a: (fft.fft(a) * fft.fft(a).conj()).real, (3, 10)),
        "numbers_added": _of(lambda a: (a + 2j).abs() * (torch.complex(a, a) + 1j).imag, (3, 4)),
        "angles": _of(lambda a, b: torch.complex(a, b).angle(), (3, 10), (3, 10)),
        "complex_quotients": _of(_quotients, (3, 10), (3, 10)),
        "complex_products": _of(lambda a, b: (torch.complex(a, a) @ torch.complex(b, -b)).imag, (2, 6, 10), (2, 10, 4)),
        "complex_choice": _of(lambda a: torch.where((a > 0)[..., :6], fft.rfft(a) ** 2, 1 - fft.rfft(a)).real, (3, 10)),
    }
