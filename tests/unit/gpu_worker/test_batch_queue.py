"""The order in which cards take a batch's steps."""

from __future__ import annotations

from cupilot.domain.batches.manifest import BatchEntry, Operation
from gpu_worker.batch.queue import StepQueue
from gpu_worker.targets.cuda.nvml import chosen_uuids
from tests.unit.cupilot.batches.batch_of import entry, problem, question

Named = dict[str, BatchEntry]


def steps(*names: str) -> list[BatchEntry]:
    """Entries by names such as ``a/evaluate``: problem and operation."""
    entries = []
    for name in names:
        of, operation = name.split("/")[:2]
        asked, _ = question(Operation(operation), problem(of))
        entries.append(entry(asked, key=name))
    return entries


def drained(queue: StepQueue, card: str) -> list[str]:
    keys = []
    while (step := queue.take(card, [card])) is not None:
        keys.append(step.key)
    return keys


def test_a_card_goes_through_one_problem_before_it_takes_another() -> None:
    queue = StepQueue(steps("a/evaluate/1", "b/evaluate/1", "a/evaluate/2", "b/evaluate/2", "b/evaluate/3"))
    assert drained(queue, "x") == ["b/evaluate/1", "b/evaluate/2", "b/evaluate/3", "a/evaluate/1", "a/evaluate/2"]
    assert len(queue) == 0


def test_what_closes_a_judge_comes_where_it_costs_least() -> None:
    queue = StepQueue(steps("a/confirm", "a/evaluate/1", "a/prepare", "a/evaluate/2", "a/trace"))
    assert drained(queue, "x") == ["a/trace", "a/prepare", "a/evaluate/1", "a/evaluate/2", "a/confirm"]


def test_cards_take_different_problems_and_help_each_other_at_the_end() -> None:
    queue = StepQueue(steps("a/evaluate/1", "a/evaluate/2", "a/evaluate/3", "b/evaluate/1"))
    cards = ["x", "y"]
    taken = [queue.take(card, cards) for card in ("x", "y", "y", "x")]
    assert [step.key for step in taken if step] == ["a/evaluate/1", "b/evaluate/1", "a/evaluate/2", "a/evaluate/3"]


def test_what_comes_next_is_told_in_the_order_in_which_it_comes() -> None:
    queue = StepQueue(steps("a/evaluate/1", "b/evaluate/1", "a/evaluate/2"))
    assert queue.take("x", ["x"]) is not None
    following = [step.key for step in queue.following("x", 8)]
    assert following == drained(queue, "x") == ["a/evaluate/2", "b/evaluate/1"]


def test_a_step_goes_to_a_card_that_it_avoids_only_where_there_is_no_other() -> None:
    asked, _ = question()
    queue = StepQueue([entry(asked, avoids="x")])
    assert queue.take("x", ["x", "y"]) is None
    assert queue.take("x", ["x"]) is not None


def test_a_step_that_the_machine_failed_at_is_tried_once_more() -> None:
    queue = StepQueue(steps("a/evaluate"))
    step = queue.take("x", ["x"])
    assert step is not None
    assert queue.put_back(step, "x")
    assert queue.take("x", ["x"]) == step
    assert not queue.put_back(step, "x")
    assert len(queue) == 0


def test_a_step_that_a_card_failed_at_is_tried_on_another_one() -> None:
    queue = StepQueue(steps("a/evaluate/1", "a/evaluate/2"))
    first = queue.take("broken", ["broken", "y"])
    assert first is not None
    queue.put_back(first, "broken")
    second = queue.take("broken", ["broken", "y"])
    assert second is not None
    assert second != first
    assert queue.take("broken", ["broken", "y"]) is None
    assert queue.take("y", ["broken", "y"]) == first


def test_cards_are_those_that_the_environment_shows() -> None:
    cards = ["GPU-aa", "GPU-ab", "GPU-b"]
    assert chosen_uuids(cards, None) == cards
    assert chosen_uuids(cards, "2,0") == ["GPU-b", "GPU-aa"]
    assert chosen_uuids(cards, "GPU-b, GPU-aa") == ["GPU-b", "GPU-aa"]
    assert chosen_uuids(cards, "1,9,0") == ["GPU-ab"]
    assert chosen_uuids(cards, "GPU-a") == chosen_uuids(cards, "") == chosen_uuids(cards, "-1") == []
