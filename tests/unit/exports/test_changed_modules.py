"""An exported ``Model`` whose module was changed after its constructor computes what the changed reference does."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from cupilot.domain.kernel import Launch
from cupilot.exports import ExportFormat
from tests.unit.exports.installed import imported, launches_of, write
from tests.unit.exports.winners import cpu, source, winner

pytestmark = pytest.mark.builds

TWO = source(
    "return self.norm(self.fc(x)) * self.scale", "torch.randn(16, 32)",
    "self.fc = nn.Linear(32, 24); self.norm = nn.LayerNorm(24); self.scale = 2.0; self.sizes = [1]",
)  # fmt: skip
TWO_CPU = cpu(
    """extern "C" void two(const float* x, const float* w, const float* b, const float* g, const float* c, float* out) {
  for (int i = 0; i < X_ROWS; ++i) {
    double y[24], sum = 0, squares = 0;
    for (int j = 0; j < 24; ++j) {
      y[j] = b[j];
      for (int k = 0; k < 32; ++k) y[j] += (double)x[i * 32 + k] * w[j * 32 + k];
      sum += y[j] / 24;
    }
    for (int j = 0; j < 24; ++j) squares += (y[j] - sum) * (y[j] - sum) / 24;
    for (int j = 0; j < 24; ++j) out[i * 24 + j] = 2 * ((y[j] - sum) / std::sqrt(squares + 1e-5) * g[j] + c[j]);
  }
}
""",
    Launch(kernel="two", args=("x", "fc_weight", "fc_bias", "norm_weight", "norm_bias", "out")),
)


class Lora(nn.Module):
    """An adapter around a layer."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.more = nn.Parameter(torch.linspace(-1, 1, 24 * 32).view(24, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, and more."""
        found: torch.Tensor = self.base(x) + x @ self.more.T
        return found


class Twice(nn.Module):
    """A parametrization."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return a weight."""
        return 2 * weight + 1


def _other_norm() -> nn.LayerNorm:
    norm = nn.LayerNorm(24)
    nn.init.constant_(norm.weight, 5.0)
    return norm


def _pruned(model: Any) -> None:
    prune.l1_unstructured(model.fc, "weight", amount=0.5)
    model.load_state_dict({**model.state_dict(), "fc.weight_orig": torch.ones(24, 32).cumsum(1)})


def _weight_norm(model: Any) -> None:
    nn.utils.weight_norm(model.fc)
    model.load_state_dict({key: tensor.cos() for key, tensor in model.state_dict().items()})


CHANGES: dict[str, Callable[[Any], Any]] = {
    "submodule": lambda model: setattr(model, "norm", _other_norm()),
    "wrapped": lambda model: setattr(model, "fc", Lora(model.fc)),
    "attribute of a submodule": lambda model: setattr(model.norm, "eps", 1.0),
    "own attribute": lambda model: setattr(model, "scale", 3.0),
    "forward hook": lambda model: model.norm.register_forward_hook(lambda *call: call[2] * 2),
    "forward pre-hook": lambda model: model.fc.register_forward_pre_hook(lambda _, args: (args[0] + 1,)),
    "forward of an instance": lambda model: setattr(model.norm, "forward", torch.relu),
    "parametrized": lambda model: parametrize.register_parametrization(model.fc, "weight", Twice()),
    "pruned": _pruned,
    "weight norm": _weight_norm,
    "no bias": lambda model: setattr(model.norm, "bias", None),
    "no parameter": lambda model: (delattr(model.norm, "bias"), setattr(model.norm, "bias", torch.full((24,), 7.0))),
    "method": lambda model: setattr(
        model.norm, "__class__", type("Other", (nn.LayerNorm,), {"forward": lambda _, x: x})
    ),
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with imported(write(winner("two", TWO, TWO_CPU), ExportFormat.TORCH, tmp_path), "cupilot_two") as module:
        yield module


def _models(package: ModuleType) -> tuple[Any, Any, torch.Tensor]:
    torch.manual_seed(1)
    slow, fast = package.reference.Model(), package.Model()
    fast.load_state_dict(slow.state_dict())
    return fast, slow, package.reference.get_inputs()[0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_module_is_left_to_the_reference(
    package: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = launches_of(package, monkeypatch)
    fast, slow, x = _models(package)
    with torch.no_grad():
        assert fast.why_not(x) == []
        torch.testing.assert_close(fast(x), slow(x), rtol=1e-4, atol=1e-4)
        for model in (fast, slow):
            CHANGES[name](model)
        assert ["changed since its constructor" in reason for reason in fast.why_not(x)] == [True]
        torch.testing.assert_close(fast(x), slow(x))
        torch.testing.assert_close(copy.deepcopy(fast)(x), slow(x))
    assert len(launches) == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["submodule", "attribute of a submodule", "own attribute", "forward hook"])
def test_a_compiled_module_notices_the_change(package: ModuleType, name: str) -> None:
    fast, slow, x = _models(package)
    compiled = torch.compile(fast, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), slow(x), rtol=1e-4, atol=1e-4)
        for model in (fast, slow):
            CHANGES[name](model)
        torch.testing.assert_close(compiled(x), slow(x))


def test_a_changed_list_and_new_attributes_count_and_harmless_ones_do_not(package: ModuleType) -> None:
    fast, _, x = _models(package)
    fast._tag = "mine"
    fast.compile(backend="eager")
    fast.requires_grad_(False)
    assert fast.why_not(x) == []
    fast.sizes.append(2)
    assert "another sizes" in fast.why_not(x)[0]
    fast.sizes.pop()
    assert fast.why_not(x) == []
    fast.norm.gain = 3
    assert "norm has the new attribute gain" in fast.why_not(x)[0]


def test_hooks_for_all_modules_count(package: ModuleType) -> None:
    fast, _, x = _models(package)
    with torch.no_grad():
        handle = nn.modules.module.register_module_forward_hook(
            lambda module, _, result: result + len(type(module).__name__)
        )
        try:
            assert "hooks for all modules" in fast.why_not(x)[0]
        finally:
            handle.remove()
        assert fast.why_not(x) == []


def test_copies_and_other_values_keep_the_kernel(package: ModuleType) -> None:
    fast, slow, x = _models(package)
    state = {key: tensor.sin() for key, tensor in slow.state_dict().items()}
    slow.load_state_dict(state)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast.load_state_dict(state, assign=True)
        for model in (fast, copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
            assert model.why_not(x) == []
            torch.testing.assert_close(model(x), slow(x), rtol=1e-4, atol=1e-4)
        called = torch.func.functional_call(package.Model(), state, (x,))
        torch.testing.assert_close(called, slow(x), rtol=1e-4, atol=1e-4)
        shallow = copy.copy(fast)
        shallow.scale = 3.0
        assert "shallow copy" in shallow.why_not(x)[0]
        torch.testing.assert_close(shallow(x), slow(x) * 1.5, rtol=1e-4, atol=1e-4)
        changed = copy.deepcopy(fast)
        changed.norm.eps = 1.0
        assert changed.why_not(x)
        assert fast.why_not(x) == []


def test_a_tied_parameter_that_was_untied_counts(tmp_path: Path) -> None:
    tied = source(
        "return self.b(self.a(x))", "torch.randn(4, 8)",
        "self.a = nn.Linear(8, 8, False); self.b = nn.Linear(8, 8, False); self.b.weight = self.a.weight",
    )  # fmt: skip
    code = cpu(
        'extern "C" void t(const float* x, const float* w, float* out) {}',
        Launch(kernel="t", args=("x", "a_weight", "out")),
    )
    with imported(write(winner("tied", tied, code), ExportFormat.TORCH, tmp_path), "cupilot_tied") as package:
        fast = package.Model()
        assert fast._changed() is None
        assert copy.deepcopy(fast)._changed() is None
        fast.b.weight = nn.Parameter(torch.ones(8, 8))
        assert "were one tensor" in fast._changed()
