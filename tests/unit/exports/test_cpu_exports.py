"""Exports for the CPU, run for real against PyTorch."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from cupilot.domain.kernel import Launch
from cupilot.domain.problem import NumericsPolicy
from cupilot.exports import ExportFormat
from tests.unit.exports.installed import imported, launches_of, run, write
from tests.unit.exports.winners import CPU_CASES, GELU, GELU_CPU, cpu, facts_of, source, winner

pytestmark = pytest.mark.builds


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(params=CPU_CASES, ids=lambda name: name.replace(" ", "_"))
def package(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ModuleType]:
    made = winner(request.param, *CPU_CASES[request.param])
    folder = write(made, ExportFormat.TORCH, tmp_path)
    with imported(folder, f"cupilot_{made.slug}") as module:
        yield module


def _models(package: ModuleType) -> tuple[Any, Any, list[Any]]:
    torch.manual_seed(3)
    slow = package.reference.Model(*package.reference.get_init_inputs())
    for parameter in slow.parameters():
        torch.nn.init.normal_(parameter)
    fast = package.Model(*package.reference.get_init_inputs())
    fast.load_state_dict(slow.state_dict())
    return fast, slow, package.reference.get_inputs()


def _same(got: Any, expected: Any) -> None:
    assert pytree.tree_structure(got) == pytree.tree_structure(expected)
    for mine, right in zip(pytree.tree_leaves(got), pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4)


IN_EVALUATION = source("return self.norm(x)", "torch.randn(16, 8)", "self.norm = nn.BatchNorm1d(8); self.eval()")
BY_RUNNING_STATISTICS = cpu(
    """extern "C" void norm(const float* x, const float* weight, const float* bias, const float* mean, const float* var,
                     float* out) {
  for (long long i = 0; i < X_SIZE; ++i) {
    long long c = i % X_COLS;
    out[i] = (x[i] - mean[c]) / std::sqrt(var[c] + 1e-5f) * weight[c] + bias[c];
  }
}
""",
    Launch(kernel="norm", args=("x", "norm_weight", "norm_bias", "norm_running_mean", "norm_running_var", "out")),
)


def test_the_mode_that_the_constructor_leaves_is_the_proven_one(tmp_path: Path) -> None:
    made = winner("norm", IN_EVALUATION, BY_RUNNING_STATISTICS)
    with imported(write(made, ExportFormat.TORCH, tmp_path), f"cupilot_{made.slug}") as package, torch.no_grad():
        fast, slow, arguments = _models(package)
        for model in (fast, copy.deepcopy(fast)):
            assert model.why_not(*arguments) == []
            _same(model(*arguments), slow(*arguments))
        fast.train(), slow.train()
        assert ["mode" in reason for reason in fast.why_not(*arguments)] == [True]
        _same(fast(*arguments), slow(*arguments))
        fast.eval()
        assert fast.why_not(*arguments) == []


def test_the_kernel_computes_what_the_reference_does(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = launches_of(package, monkeypatch)
    fast, slow, arguments = _models(package)
    with torch.no_grad():
        assert fast.why_not(*arguments) == []
        _same(fast(*arguments), slow(*arguments))
    assert launches == [len(package.spec["given"])]


def test_outside_of_what_is_proven_the_reference_answers(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = launches_of(package, monkeypatch)
    fast, slow, arguments = _models(package)

    def changed(change: Any) -> list[Any]:
        found: list[Any] = pytree.tree_map_only(torch.Tensor, change, arguments)
        return found

    other = {
        "shape": changed(lambda tensor: tensor[:3]),
        "dtype": changed(lambda tensor: tensor.double()),
        "strides": changed(lambda tensor: tensor.T.contiguous().T),
    }
    for name, given in other.items():
        wide = name == "dtype"
        mine, right = (copy.deepcopy(model).double() if wide else model for model in (fast, slow))
        with torch.no_grad():
            assert mine.why_not(*given), name
            _same(mine(*given), right(*given))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        _same(fast(*arguments), slow(*arguments))
    assert not launches


def test_a_view_at_an_odd_address_is_copied(package: ModuleType) -> None:
    fast, slow, arguments = _models(package)

    def shifted(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros(1), tensor.flatten()])[1:].view(tensor.shape)

    given = pytree.tree_map_only(torch.Tensor, shifted, arguments)
    with torch.no_grad():
        assert fast.why_not(*given) == []
        _same(fast(*given), slow(*given))


def test_addresses_are_as_aligned_as_the_source_relies_on(tmp_path: Path) -> None:
    code = """extern "C" void gelu(const float* x, float* out) {
      const float* in = (const float*)__builtin_assume_aligned(x, %d);
      for (long long i = 0; i < X_SIZE; ++i) out[i] = %d * (((long long)in | (long long)out) %% %d != 0);
    }"""
    for number, relied in enumerate((64, 256)):
        made = winner(f"gelu {number}", GELU, cpu(code % (relied, 1, relied), Launch(kernel="gelu", args=("x", "out"))))
        assert made.alignment() == relied
        with imported(write(made, ExportFormat.TORCH, tmp_path), f"cupilot_gelu_{number}") as package, torch.no_grad():
            model = package.Model()
            for _ in range(20):
                assert not model(torch.randn(64 * 96 + 16)[16:].view(64, 96)).any()


def test_gradients_are_the_references(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = launches_of(package, monkeypatch)
    fast, slow, arguments = _models(package)
    given = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.requires_grad_(), arguments)
    results = []
    for model in (fast, slow):
        output = pytree.tree_leaves(model(*given))[0]
        results.append(torch.autograd.grad(output.square().sum(), pytree.tree_leaves(given)[0])[0])
    _same(*results)
    assert not launches


class Scaled(torch.Tensor):
    """A wrapper around another tensor: it has no memory of its own."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Scaled:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, strides=inner.stride(), dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(Scaled, lambda tensor: tensor.inner * 2, (args, kwargs or {}))
        return func(*args, **kwargs)


def test_a_subclass_with_operators_of_its_own_is_left_to_the_reference(package: ModuleType) -> None:
    fast, slow, arguments = _models(package)
    given = pytree.tree_map_only(torch.Tensor, Scaled, arguments)
    with torch.no_grad():
        assert fast.why_not(*given) == ["a tensor is a Scaled"]
        _same(fast(*given), slow(*given))


HALF = source(
    "return x @ y", "torch.randn(8, 16, dtype=torch.bfloat16), torch.randn(16, 4, dtype=torch.bfloat16)",
    arguments="x, y",
)  # fmt: skip


def test_autocast_is_the_references_under_the_policy_half_too(tmp_path: Path) -> None:
    code = cpu('extern "C" void product(const short* x, const short* y, short* out) {}',
               Launch(kernel="product", args=("x", "y", "out")))  # fmt: skip
    made = winner("product", HALF, code, facts=facts_of(HALF, NumericsPolicy.HALF))
    with imported(write(made, ExportFormat.TORCH, tmp_path), "cupilot_product") as package, torch.no_grad():
        fast, slow, arguments = _models(package)
        assert package.spec["policy"] == "half"
        assert fast.why_not(*arguments) == []
        with torch.autocast("cpu", torch.float16):
            assert ["autocast" in reason for reason in fast.why_not(*arguments)] == [True]
            assert fast(*arguments).dtype == torch.float16
            _same(fast(*arguments), slow(*arguments))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.jit")
def test_derivatives_in_forward_mode_are_the_references(tmp_path: Path) -> None:
    with imported(write(winner("gelu", GELU, GELU_CPU), ExportFormat.TORCH, tmp_path), "cupilot_gelu") as package:
        fast, slow, (x,) = _models(package)
        tangent = torch.ones_like(x)

        def dual(model: Any) -> Any:
            with torch.autograd.forward_ad.dual_level():
                given = torch.autograd.forward_ad.make_dual(x, tangent)
                return torch.autograd.forward_ad.unpack_dual(model(given)).tangent

        def jvp(model: Any, given: torch.Tensor, direction: torch.Tensor) -> Any:
            return torch.func.jvp(model, (given,), (direction,))[1]

        _same(dual(fast), dual(slow))
        _same(jvp(fast, x, tangent), jvp(slow, x, tangent))
        stacked = jvp(torch.vmap(fast), x[None], tangent[None])
        _same(stacked, jvp(torch.vmap(slow), x[None], tangent[None]))
        compiled = torch.compile(lambda given, direction: jvp(fast, given, direction), backend="eager", fullgraph=True)
        _same(compiled(x, tangent), jvp(slow, x, tangent))
        with pytest.raises(Exception, match="no derivatives in forward mode"):
            torch.compile(lambda given, direction: jvp(package.op, given, direction), backend="eager")(x, tangent)
        for derivative in (dual, lambda op: jvp(op, x, tangent)):
            with pytest.raises(ValueError, match="no derivatives in forward mode"):
                derivative(package.op)
        with torch.autograd.forward_ad.dual_level():
            assert ["forward mode" in reason for reason in fast.why_not(x)] == [True]


def test_torch_compile_sees_one_operator(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    launches = launches_of(package, monkeypatch)
    fast, slow, arguments = _models(package)
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    with torch.no_grad():
        _same(torch.compile(fast, fullgraph=True, backend=backend)(*arguments), slow(*arguments))
    assert any(package.__name__ in name for name in seen)
    assert len(launches) == 1


def test_the_operator_passes_pytorchs_own_checks(package: ModuleType) -> None:
    fast, _, arguments = _models(package)
    given = fast._tensors(tuple(arguments))
    with torch.no_grad():
        torch.library.opcheck(
            package.op, tuple(tensor.detach() for tensor in given),
            test_utils=("test_schema", "test_faketensor"),
        )  # fmt: skip
        with pytest.raises(ValueError, match="shape"):
            package.op(*(tensor[:1] for tensor in given))


def test_other_constructor_arguments_leave_everything_to_the_reference(tmp_path: Path) -> None:
    folder = write(winner("layer norm", *CPU_CASES["layer norm"]), ExportFormat.TORCH, tmp_path)
    with imported(folder, "cupilot_layer_norm") as package:
        with pytest.warns(UserWarning, match="other arguments"):
            fast = package.Model(32)
        assert fast(torch.randn(4, 32)).shape == (4, 32)


def test_no_compiler_is_said_once_and_the_reference_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(winner("gelu", GELU, GELU_CPU), ExportFormat.TORCH, tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    with imported(folder, "cupilot_gelu") as package, torch.no_grad():
        fast, slow, arguments = _models(package)
        with pytest.warns(UserWarning, match="the reference is used"):
            _same(fast(*arguments), slow(*arguments))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _same(fast(*arguments), slow(*arguments))


def test_the_package_tests_itself_and_builds(tmp_path: Path) -> None:
    folder = write(winner("layer norm", *CPU_CASES["layer norm"]), ExportFormat.TORCH, tmp_path)
    done = run(folder, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "tests", "-k", "not torch_compile")
    assert done.returncode == 0, done.stdout[-3000:]
    assert "5 passed" in done.stdout
    assert "times as fast as eager here" in done.stdout


ONE_ROW = source("return x.masked_fill(x < 0, float('-inf'))", "torch.randn(1, 96)")
ONE_ELEMENT = source("return torch.nn.functional.relu(x)", "torch.randn(1, 1)")
LOOP = """extern "C" void m(const float* x, float* out) {
  for (long long i = 0; i < X_SIZE; ++i) out[i] = x[i] < 0 ? %s : x[i];
}"""


QUANTISER = source("return torch.round(x * 10).to(torch.int32)", "torch.randn(200, 200)")


@pytest.mark.parametrize(("off", "counts"), [("1", "5 passed"), ("2", "3 failed, 2 passed")])
def test_the_packages_own_tests_let_few_whole_numbers_be_one_step_off(off: str, counts: str, tmp_path: Path) -> None:
    text = f"""extern "C" void q(const float* x, int* out) {{
  for (long long i = 0; i < X_SIZE; ++i) out[i] = (int)__builtin_rintf(x[i] * 10.0f) + (i == 7 ? {off} : 0);
}}"""
    made = winner("quantiser", QUANTISER, cpu(text, Launch(kernel="q", args=("x", "out"))))
    folder = write(made, ExportFormat.TORCH, tmp_path)
    done = run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", "-k", "not torch_compile")
    assert counts in done.stdout, done.stdout[-3000:]


@pytest.mark.parametrize(
    ("text", "below", "counts"),
    [
        (ONE_ROW, "-INFINITY", "5 passed"),
        (ONE_ROW, "INFINITY", "3 failed, 2 passed"),
        (ONE_ELEMENT, "0", "4 passed, 1 skipped"),
    ],
)
def test_the_packages_own_tests_judge_rightly(text: str, below: str, counts: str, tmp_path: Path) -> None:
    made = winner("mask", text, cpu(LOOP % below, Launch(kernel="m", args=("x", "out"))))
    folder = write(made, ExportFormat.TORCH, tmp_path)
    done = run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests", "-k", "not torch_compile")
    assert counts in done.stdout, done.stdout[-3000:]


@pytest.mark.parametrize("name", CPU_CASES)
def test_model_new_is_what_kernelbench_loads(name: str, tmp_path: Path) -> None:
    made = winner(name, *CPU_CASES[name])
    folder = write(made, ExportFormat.KERNELBENCH, tmp_path)
    context: dict[str, Any] = {}
    text = (folder / f"{made.slug}_modelnew.py").read_text(encoding="utf-8")
    exec(compile(text, "modelnew", "exec", dont_inherit=True), context)
    reference: dict[str, Any] = {}
    exec(CPU_CASES[name][0], reference)
    torch.manual_seed(42)
    slow = reference["Model"](*reference["get_init_inputs"]())
    torch.manual_seed(42)
    fast = context["ModelNew"](*context["get_init_inputs"]())
    arguments = reference["get_inputs"]()
    assert context["LAUNCHER"].trouble(torch.device("cpu")) is None
    calls: list[int] = []
    type(fast).run = staticmethod(lambda given: calls.append(1) or context["LAUNCHER"](given))
    _same(fast(*arguments), pytree.tree_map(lambda tensor: tensor.detach(), slow(*arguments)))
    assert calls == [1], "the kernel was not used"


def test_the_operator_is_passed_by_only_where_nobody_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    class Own(torch.Tensor):
        pass

    folder = write(winner("gelu", GELU, GELU_CPU), ExportFormat.TORCH, tmp_path)
    with imported(folder, "cupilot_gelu") as package, torch.no_grad():
        fast, slow, arguments = _models(package)
        asked: list[int] = []
        op = package.op
        monkeypatch.setattr(package, "op", lambda *given: asked.append(1) or op(*given))
        launches = launches_of(package, monkeypatch)
        _same(fast(*arguments), slow(*arguments))
        assert (len(asked), len(launches)) == (0, 1)
        for watching in (Watching(), torch.device("cpu"), torch.autograd.profiler.profile()):
            before = len(asked)
            with watching:
                _same(fast(*arguments), slow(*arguments))
            assert len(asked) == before + 1, watching
        before = len(asked)
        fast(*(tensor.as_subclass(Own) for tensor in arguments))
        assert len(asked) == before + 1


def test_tensors_whose_values_are_not_in_memory_are_left_to_the_reference(package: ModuleType) -> None:
    fast, slow, arguments = _models(package)
    cases = {
        "a tensor is a negated view": torch._neg_view,
        "a tensor is a zero tensor": lambda tensor: torch._efficientzerotensor(tensor.shape),
    }
    for reason, change in cases.items():
        given = pytree.tree_map_only(torch.Tensor, change, arguments)
        with torch.no_grad():
            assert reason in fast.why_not(*given)
            _same(fast(*given), slow(*given))


def test_arguments_by_keyword_are_the_references_and_named(tmp_path: Path) -> None:
    with imported(write(winner("gelu", GELU, GELU_CPU), ExportFormat.TORCH, tmp_path), "cupilot_gelu") as package:
        fast, slow, (x,) = _models(package)
        assert ["x: " in reason and "keyword" in reason for reason in fast.why_not(x=x)] == [True]
        _same(fast(x=x), slow(x=x))


def test_a_stride_that_means_nothing_does_not_matter(tmp_path: Path) -> None:
    folder = write(winner("gelu", GELU, GELU_CPU), ExportFormat.TORCH, tmp_path)
    with imported(folder, "cupilot_gelu"):
        runtime = sys.modules["cupilot_gelu._proven"]
        item = {"name": "x", "dtype": "float32", "shape": [1, 8], "strides": [8, 1]}
        proof, given = runtime.Proof({"given": [item]}), torch.zeros(8).as_strided((1, 8), (3, 1))
        assert not proof.covers([given])
        assert runtime.outside({"given": [item]}, [given]) is None
        assert proof.covers([torch.zeros(1, 8)])
        for other in (torch.zeros(1, 8).double(), torch.zeros(1, 9), torch.zeros(1, 16)[:, ::2]):
            assert not proof.covers([other])
            assert runtime.outside({"given": [item]}, [other]) is not None
        assert not proof.covers([torch.zeros(1, 8)] * 2)


def test_the_evidence_says_none_where_there_is_no_cuda(tmp_path: Path) -> None:
    folder = write(winner("gelu", GELU, GELU_CPU), ExportFormat.TORCH, tmp_path)
    assert "| driver, CUDA, torch | 580.1, none, 2.11 |" in (folder / "README.md").read_text()
