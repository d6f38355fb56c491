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


def _operator_layer(signal: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The layer of a Fourier neural operator: products of the lowest frequencies, set in a spectrum of zeros."""
    spectrum, rows, columns = fft.rfft2(signal), weights.shape[2] // 2, weights.shape[3]
    factors = torch.view_as_complex(weights)
    result = torch.zeros(signal.shape[0], weights.shape[1], *spectrum.shape[2:], dtype=spectrum.dtype)
    for part, some in ((slice(rows), factors[:, :, :rows]), (slice(-rows, None), factors[:, :, rows:])):
        low = spectrum[:, :, part, :columns]
        result[:, :, part, :columns] = torch.einsum("bixy,ioxy->boxy", low, some)
    return fft.irfft2(result, s=signal.shape[-2:])


def _poisson(density: torch.Tensor) -> torch.Tensor:
    """The solution of Poisson's equation on a ring, without its mean."""
    points = density.shape[-1]
    squares = (fft.rfftfreq(points, 1 / points, dtype=density.dtype) ** 2).clone()
    squares[0] = 1.0
    spectrum = fft.rfft(density) / squares
    spectrum[..., 0] = 0
    return fft.irfft(spectrum, n=points)


def _state_of_poles(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A linear recurrence with complex poles."""
    poles = torch.polar(torch.sigmoid(a), b)
    state = torch.zeros_like(poles)
    states = []
    for step in range(4):
        state = poles * state + step
        states.append(state.real)
    return torch.stack(states)


def _written_below_a_view(a: torch.Tensor) -> torch.Tensor:
    parts = a * 2
    later_rows = torch.view_as_complex(parts)[1:].unsqueeze(-1)
    parts.add_(1)
    return torch.view_as_real(later_rows)


def _written_through_views(a: torch.Tensor) -> torch.Tensor:
    whole = torch.complex(a, -a)
    whole.t()[:2].mul_(3j)
    whole[1:, -1].add_(whole[:-1, 0])
    whole.diagonal().zero_()
    whole[torch.tensor([0, 2]), 1] = 1 + 2j
    whole.masked_fill_(a > 1, 0.5)
    return torch.view_as_real(whole)


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
        "operator_layer": _of(_operator_layer, (2, 3, 8, 10), (3, 4, 6, 4, 2)),
        "poisson": _of(_poisson, (3, 12)),
        "frequencies": _of(lambda a: a * fft.fftfreq(7, 0.5) + a * fft.fftfreq(7), (3, 7)),
        "state_of_poles": _of(_state_of_poles, (3, 5), (3, 5)),
        "written_in_place": _of(lambda a: torch.view_as_real(torch.view_as_complex(a * 2).mul_(3)), (4, 2)),
        "written_below_a_view": _of(_written_below_a_view, (4, 2)),
        "written_through_views": _of(_written_through_views, (4, 5)),
        "complex_choice": _of(lambda a: torch.where((a > 0)[..., :6], fft.rfft(a) ** 2, 1 - fft.rfft(a)).real, (3, 10)),
    }
