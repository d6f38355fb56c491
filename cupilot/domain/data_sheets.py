"""Peaks of device models as their makers state them: one number a model, so that results of different cards compare.

Dense rates at boost clock, a multiply-add as two operations; ``half`` with float32 accumulation, as the policy has it.
A model is known by the exact name that the driver reports: a slice of a card (MIG) is another device.
"""

from __future__ import annotations

from dataclasses import dataclass

from cupilot.domain.hardware import Peaks
from cupilot.domain.problem import NumericsPolicy


@dataclass(frozen=True)
class StatedPeaks:
    """A model's data sheet, in bytes and operations a second."""

    bandwidth: float
    fp32: float
    tf32: float | None
    half: float | None
    source: str

    def in_place_of(self, measured: Peaks) -> Peaks:
        """Return these peaks, with what data sheets do not state as it was measured."""
        stated = {NumericsPolicy.TF32: self.tf32, NumericsPolicy.HALF: self.half}
        tensor = {policy: rate for policy, rate in stated.items() if rate is not None}
        changes = {"bandwidth": self.bandwidth, "scalar_flops": self.fp32, "tensor_flops": tensor}
        return measured.model_copy(update=changes)


def stated_peaks(device_name: str) -> StatedPeaks | None:
    """Return the data sheet of a device model; None for one without, as CPUs and slices of a card."""
    return _SHEETS.get(device_name)


def _sheet(bandwidth_gb: float, fp32: float, tf32: float | None, half: float | None, source: str) -> StatedPeaks:
    """Return a sheet from gigabytes and teraflops a second."""
    tensor = [None if rate is None else rate * 1e12 for rate in (tf32, half)]
    return StatedPeaks(bandwidth_gb * 1e9, fp32 * 1e12, tensor[0], tensor[1], source)


_BLACKWELL = "NVIDIA Blackwell Architecture Technical Brief, HGX B200"
_H200 = "NVIDIA H200 Tensor Core GPU data sheet"
_H100 = "NVIDIA H100 Tensor Core GPU data sheet"
_GH200 = "NVIDIA GH200 Grace Hopper Superchip data sheet"
_A100 = "NVIDIA A100 Tensor Core GPU data sheet"
_ADA = "NVIDIA Ada GPU Architecture white paper, appendix A"
_AMPERE = "NVIDIA Ampere GA102 GPU Architecture white paper, appendix A"
_RTX_BLACKWELL = "NVIDIA RTX Blackwell GPU Architecture white paper, appendix A"

_SHEETS = {
    "NVIDIA B200": _sheet(8000, 80, 1100, 2250, _BLACKWELL),
    "NVIDIA GB200": _sheet(8000, 80, 1250, 2500, "NVIDIA GB200 NVL72 data sheet"),
    "NVIDIA H200": _sheet(4800, 67, 494.5, 989.5, _H200),
    "NVIDIA H200 NVL": _sheet(4800, 60, 417.5, 835.5, _H200),
    "NVIDIA GH200 480GB": _sheet(4000, 67, 494.5, 989.5, _GH200),
    "NVIDIA GH200 144G HBM3e": _sheet(4900, 67, 494.5, 989.5, _GH200),
    "NVIDIA H100 80GB HBM3": _sheet(3350, 67, 494.5, 989.5, _H100),
    "NVIDIA H100 NVL": _sheet(3900, 60, 417.5, 835.5, _H100),
    "NVIDIA H100 PCIe": _sheet(2000, 51, 378, 756.5, _H100),
    "NVIDIA A100-SXM4-80GB": _sheet(2039, 19.5, 156, 312, _A100),
    "NVIDIA A100-SXM4-40GB": _sheet(1555, 19.5, 156, 312, _A100),
    "NVIDIA A100 80GB PCIe": _sheet(1935, 19.5, 156, 312, _A100),
    "NVIDIA A100-PCIE-40GB": _sheet(1555, 19.5, 156, 312, _A100),
    "NVIDIA A40": _sheet(696, 37.4, 74.8, 149.7, "NVIDIA A40 data sheet"),
    "NVIDIA A30": _sheet(933, 10.3, 82, 165, "NVIDIA A30 data sheet"),
    "NVIDIA A10": _sheet(600, 31.2, 62.5, 125, "NVIDIA A10 data sheet"),
    "NVIDIA L40S": _sheet(864, 91.6, 183, 362, "NVIDIA L40S data sheet"),
    "NVIDIA L40": _sheet(864, 90.5, 90.5, 181, "NVIDIA L40 data sheet"),
    "NVIDIA L4": _sheet(300, 30.3, 60, 121, "NVIDIA L4 data sheet"),
    "Tesla T4": _sheet(320, 8.1, None, 65, "NVIDIA T4 data sheet"),
    "NVIDIA RTX 6000 Ada Generation": _sheet(960, 91.1, 182.1, 364.2, _ADA),
    "NVIDIA RTX A6000": _sheet(768, 38.7, 77.4, 154.8, _AMPERE),
    "NVIDIA GeForce RTX 5090": _sheet(1792, 104.8, 104.8, 209.5, _RTX_BLACKWELL),
    "NVIDIA GeForce RTX 4090": _sheet(1008, 82.6, 82.6, 165.2, _ADA),
    "NVIDIA GeForce RTX 4080": _sheet(717, 48.7, 48.7, 97.5, _ADA),
    "NVIDIA GeForce RTX 3090": _sheet(936, 35.6, 35.6, 71, _AMPERE),
    "NVIDIA GeForce RTX 3080": _sheet(760, 29.8, 29.8, 59.5, _AMPERE),
}
"""By the name of the model that the driver reports."""
