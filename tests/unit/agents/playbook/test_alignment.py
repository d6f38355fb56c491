"""Alignment strikes what neither source nor binary show."""

from __future__ import annotations

import pytest
import torch

from agents.interface import Alignment
from agents.playbook import agents
from agents.playbook.evidence import missing
from agents.playbook.ladders import parse
from benchmarks import evolved
from cupilot.domain.evaluation import BuildReport, Evaluation, Verdict
from cupilot.domain.kernel import Kernel, Launch, LaunchPlan, Workspace
from cupilot.domain.problem import NumericsPolicy, Target
from cupilot.domain.roofline import Zone
from cupilot.domain.strategy import Strategy, TechniqueUse
from tests.unit.agents.playbook.briefings import briefing
from tests.unit.agents.playbook.evaluations import attempt, build_report
from tests.unit.agents.playbook.operators_under_test import everything
from tests.unit.agents.playbook.references import trace

PLAYBOOK = agents()
FACTS, _ = trace(lambda x: torch.softmax(x, 1), {"x": torch.zeros(64, 1024)})
RECORDED = [job["problem"] for job in evolved.jobs("h200_fp32")]
BRIEF = briefing(FACTS, Target.CUDA)


def aligned(strategy: Strategy, kernel: Kernel | None, build: BuildReport | None = None) -> Alignment:
    evaluation = None
    if build is not None:
        evaluation = Evaluation(kernel_hash="k", problem_hash="p", verdict=Verdict.COMPILED, build=build)
    return PLAYBOOK.translator.align(BRIEF, attempt(strategy, evaluation, kernel))


def rendered(text: str) -> tuple[Strategy, Kernel]:
    strategy = parse(text)
    return strategy, PLAYBOOK.translator.translate(BRIEF, strategy, (), 0)


def foreign(source: str, target: Target = Target.CUDA) -> Kernel:
    launch = Launch(kernel="k", args=("x", "out"), grid=("1",), block=("1",))
    return Kernel(target=target, source=source, plan=LaunchPlan(launches=(launch,)))


def test_a_rendered_kernel_keeps_every_technique() -> None:
    strategy, kernel = rendered("vector_loads, register_rows, warp_shuffle_reduction, fast_exp, streaming_access: why")
    counts = {"vector_load_128": 4, "shuffle": 10, "special_function": 6, "streaming": 2, "instructions": 200}
    build = build_report(instructions=counts)
    found = aligned(strategy, kernel, build)
    assert found.struck == ()
    assert found.fidelity == 1.0
    assert found.strategy == strategy


@pytest.mark.parametrize("target", list(Target))
@pytest.mark.parametrize("name", ["gelu", "softmax", "softmax_middle", "layer_norm", "sum_last", "mm"])
def test_templates_leave_the_traces_that_are_looked_for(name: str, target: Target) -> None:
    case = everything()[name]
    facts, _ = trace(case.function, case.inputs, case.parameters, policy=NumericsPolicy.HALF)
    about = briefing(facts, target, Zone.COMPUTE if name == "mm" else Zone.MEMORY)
    for item in PLAYBOOK.manager.initial_strategies(about, [], 24, 5):
        kernel = PLAYBOOK.translator.translate(about, item.strategy, (), 0)
        found = PLAYBOOK.translator.align(about, attempt(item.strategy, None, kernel))
        assert found.struck == (), (item.strategy.ids(), found.strategy.rationale)


def test_narrow_loads_in_the_binary_strike_the_claim() -> None:
    strategy, kernel = rendered("vector_loads, warp_shuffle_reduction: why")
    found = aligned(strategy, kernel, build_report(instructions={"shuffle": 10, "instructions": 200}))
    assert found.struck == ("vector_loads",)
    assert found.fidelity == 0.5
    assert found.strategy.ids() == ("warp_shuffle_reduction",)
    assert "Struck after the build: vector_loads" in found.strategy.rationale


def test_kept_rows_that_spill_are_not_kept() -> None:
    strategy, kernel = rendered("register_rows: ")
    found = aligned(strategy, kernel, build_report(instructions={"local_memory": 12, "instructions": 200}))
    assert found.struck == ("register_rows",)
    assert found.fidelity == 0.0


def test_tensor_cores_must_be_in_the_binary() -> None:
    strategy = parse("shared_tiling, tensor_cores, async_copy: ")
    kernel = foreign("__shared__ float t[1]; wmma::mma_sync(a, b, c, d); cp.async")
    scalar = aligned(strategy, kernel, build_report(instructions={"shared_memory": 9, "instructions": 99}))
    assert scalar.struck == ("tensor_cores", "async_copy")
    counts = {"shared_memory": 9, "tensor_core": 8, "async_copy": 4, "instructions": 99}
    assert aligned(strategy, kernel, build_report(instructions=counts)).struck == ()


def test_a_claim_in_a_comment_is_no_evidence() -> None:
    strategy = parse("warp_shuffle_reduction, streaming_access: ")
    found = aligned(strategy, foreign("// uses __shfl_xor_sync and __stcs\n/* __ldcs */ int x;"))
    assert found.struck == ("warp_shuffle_reduction", "streaming_access")


def test_vectors_and_threads_of_the_cpu_are_looked_up_in_the_binary() -> None:
    strategy = parse("threads, simd(width=16), prefetch: ")
    source = "#pragma omp parallel for\ntypedef float v __attribute__((vector_size(64))); __builtin_prefetch(p);"
    kernel = foreign(source, Target.CPU)
    scalar = aligned(strategy, kernel, build_report(instructions={"simd_128": 9}))
    assert scalar.struck == ("threads", "simd", "prefetch")
    counts = {"simd_512": 40, "omp_parallel": 1, "prefetch": 2}
    assert aligned(strategy, kernel, build_report(instructions=counts)).struck == ()


def test_what_leaves_no_trace_is_believed_and_so_is_everything_without_a_build() -> None:
    strategy = Strategy(techniques=(TechniqueUse(id="my_new_trick"), TechniqueUse(id="loop_unrolling")))
    assert aligned(strategy, foreign("int x;"), build_report(instructions={"instructions": 5})).fidelity == 1.0
    assert aligned(parse("vector_loads: "), None).fidelity == 1.0
    assert aligned(Strategy(techniques=()), None).fidelity == 1.0


def changed(kernel: Kernel, source: str | None = None, **plan: object) -> Kernel:
    """The same kernel with parts of its plan exchanged; parts of a launch are those of its only one."""
    fields = {name: plan.pop(name) for name in list(plan) if name in Launch.model_fields}
    launches = tuple(launch.model_copy(update=fields) for launch in kernel.plan.launches)
    update = {"source": source or kernel.source, "plan": kernel.plan.model_copy(update={"launches": launches, **plan})}
    return kernel.model_copy(update=update)


def test_a_cluster_technique_needs_a_cluster_in_the_plan_or_the_source() -> None:
    strategy, kernel = parse("cluster_rows: "), foreign("int x; // __cluster_dims__(4)")
    found = aligned(strategy, kernel)
    assert found.struck == ("cluster_rows",)
    assert "no launch of the plan has a cluster" in found.strategy.rationale
    assert aligned(strategy, changed(kernel, cluster=("1",))).struck == ("cluster_rows",)
    assert aligned(strategy, changed(kernel, cluster=("K_BLOCKS", "1"))).struck == ()
    assert aligned(strategy, changed(kernel, "__global__ void __cluster_dims__(4) k();")).struck == ()


@pytest.mark.parametrize("technique", ["split_rows", "split_k"])
def test_parts_of_different_blocks_must_be_able_to_meet(technique: str) -> None:
    strategy, kernel = parse(f"{technique}: "), foreign("out[i] = x[i];")
    assert aligned(strategy, kernel).struck == (technique,)
    one, scratch = kernel.plan.launches[0], Workspace(name="parts", bytes="64")
    meeting = [
        kernel.model_copy(update={"plan": kernel.plan.model_copy(update={"launches": (one, one)})}),
        changed(kernel, workspace=(scratch,)),
        changed(kernel, cooperative=True),
        changed(kernel, cluster=("2",)),
        changed(kernel, "atomicAdd(out, x[i]);"),
    ]
    assert [aligned(strategy, each).struck for each in meeting] == [()] * len(meeting)


def test_techniques_of_shared_memory_need_some_static_or_dynamic() -> None:
    names = ("shared_tiling", "bank_padding", "double_buffering")
    strategy, kernel = parse(f"{', '.join(names)}: "), foreign("__shared__ float unused[64];")
    counts = {"shared_memory": 2, "instructions": 99}
    none = build_report(shared_bytes=0, instructions=counts)
    assert aligned(strategy, kernel, none).struck == names
    assert aligned(strategy, changed(kernel, shared_bytes="K_TILE * 4"), none).struck == ()
    assert aligned(strategy, kernel, build_report(shared_bytes=256, instructions=counts)).struck == ()
    assert aligned(strategy, kernel, build_report(instructions=counts)).struck == ()
    assert aligned(strategy, kernel).struck == ()


def test_tiles_that_only_the_copy_engine_and_tensor_cores_touch_are_tiles() -> None:
    kernel = foreign("__shared__ float t[1]; wgmma")
    strategy = parse("shared_tiling, tensor_cores: ")
    counts = {"tensor_core": 8, "async_copy": 2, "tma_load": 2, "instructions": 99}
    assert aligned(strategy, kernel, build_report(instructions=counts)).struck == ()


def test_loads_by_a_tensor_map_need_one_in_the_plan() -> None:
    strategy = parse("tma_loads: ")
    kernel = foreign('__shared__ float t[1]; asm("cp.async.bulk.tensor.2d");')
    assert aligned(strategy, kernel).struck == ("tma_loads",)
    tile = {"name": "x_map", "tensor": "x", "box": ["16", "16"]}
    plan = LaunchPlan.model_validate(kernel.plan.model_dump() | {"tensor_maps": [tile]})
    unused = kernel.model_copy(update={"plan": plan})
    assert aligned(strategy, unused).struck == ("tma_loads",)
    assert aligned(strategy, changed(unused, args=("x_map", "out"))).struck == ()


def test_the_approximate_units_must_be_in_the_binary() -> None:
    strategy, kernel = parse("fast_exp: "), foreign("y = __expf(x);")
    assert aligned(strategy, kernel, build_report(instructions={"instructions": 99})).struck == ("fast_exp",)
    counts = {"special_function": 1, "instructions": 99}
    assert aligned(strategy, kernel, build_report(instructions=counts)).struck == ()


@pytest.mark.parametrize("problem", RECORDED)
def test_kernels_that_were_built_and_measured_on_a_gpu_keep_their_techniques(problem: str) -> None:
    recorded = evolved.winner("h200_fp32", problem)
    strategy, kernel = recorded.strategy, recorded.kernel
    assert kernel is not None
    build = recorded.evaluation and recorded.evaluation.build
    assert build is not None
    assert build.instructions
    assert missing(strategy, kernel, build) == {}
