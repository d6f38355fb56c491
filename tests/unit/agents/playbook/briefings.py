"""Devices, placements and briefings for these tests."""

from __future__ import annotations

from agents.interface import Briefing
from cupilot.domain.hardware import Device
from cupilot.domain.problem import Problem, ProblemFacts, Target
from cupilot.domain.roofline import Placement, Zone

H200 = Device(
    target=Target.CUDA,
    uid="GPU-0",
    name="NVIDIA H200",
    arch="sm_90",
    units=132,
    memory_bytes=141 * 10**9,
    cache_bytes=50 * 2**20,
    shared_bytes_per_block=227 * 1024,
    registers_per_unit=65536,
    threads_per_unit=2048,
)
CPU = Device(
    target=Target.CPU,
    uid="cpu-0",
    name="a CPU",
    arch="x86-64-avx512",
    units=2,
    memory_bytes=16 * 2**30,
    cache_bytes=64 * 1024,
)
"""A small cache, so that techniques for large tensors apply to the tests' small ones."""


def placement(zone: Zone = Zone.MEMORY) -> Placement:
    intensity = {Zone.MEMORY: 1.0, Zone.MIDDLE: 30.0, Zone.COMPUTE: 300.0}[zone]
    return Placement(
        intensity=intensity,
        ridge_scalar=15.0,
        ridge_tensor=100.0,
        zone=zone,
        memory_floor_us=10.0,
        compute_floor_us=1.0,
        floor_us=10.0,
    )


def briefing(facts: ProblemFacts, target: Target, zone: Zone | None = Zone.MEMORY) -> Briefing:
    return Briefing(
        problem=Problem(name="test", source="pass", policy=facts.policy),
        facts=facts,
        target=target,
        device=H200 if target is Target.CUDA else CPU,
        placement=None if zone is None else placement(zone),
    )
