"""References whose time goes by outside of PyTorch's operators."""

from __future__ import annotations

from gpu_worker.judge.host_time import is_host_bound


def test_a_sleep_is_the_hosts_time() -> None:
    assert is_host_bound(eager_seconds=2e-3, operator_seconds=3e-5, calls=1)


def test_what_every_call_costs_is_no_accusation() -> None:
    assert not is_host_bound(eager_seconds=4e-5, operator_seconds=5e-6, calls=1)
    assert not is_host_bound(eager_seconds=1.5e-3, operator_seconds=2e-4, calls=100)


def test_operators_that_take_longer_than_the_host_are_the_work() -> None:
    assert not is_host_bound(eager_seconds=1e-2, operator_seconds=6e-3, calls=3)
    assert not is_host_bound(eager_seconds=1e-3, operator_seconds=2e-3, calls=3)
