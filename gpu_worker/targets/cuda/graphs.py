"""PyTorch calls as one CUDA graph, so that a short baseline is timed without its launches, as a short kernel is.

One pool of memory serves all captures: a graph that is gone leaves its memory to the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch

from gpu_worker.targets.base import GraphUnavailable


class Capturer:
    """Captures on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = None
        self._anchor: torch.cuda.CUDAGraph | None = None
        """A graph that stays, for a pool lives as long as one of its graphs."""

    def capture(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """Return the calls as one that replays them; what they return now holds their results after each replay."""
        torch.cuda.synchronize(self._device)
        try:
            with torch.cuda.stream(self._stream):
                calls[0]()  # libraries allocate what they keep for a stream, which a capture must not do
                self._stream.synchronize()
                if self._anchor is None:
                    self._pool = torch.cuda.graph_pool_handle()
                    self._anchor = self._captured([lambda: torch.zeros(1, device=self._device)])
                graph = self._captured(calls)
        except Exception as error:  # whatever a reference raises that asks for results meanwhile
            torch.cuda.synchronize(self._device)
            reason = str(error).strip().splitlines() or [""]
            raise GraphUnavailable(f"PyTorch's calls cannot be captured: {reason[0][:200]}") from error
        graph.replay()  # the first replay sends the graph to the device, which the runner does too, untimed
        return graph.replay

    def _captured(self, calls: Sequence[Callable[[], object]]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            for call in calls:
                call()
        except Exception:
            self._abandon(graph)
            raise
        graph.capture_end()
        return graph

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture that failed: one that was invalidated tells neither the allocator nor the random numbers."""
        with suppress(RuntimeError):
            graph.capture_end()
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self._device.index, self._pool)
        generator = torch.cuda.default_generators[self._device.index]
        generator.graphsafe_set_state(generator.clone_state())  # the old state refuses to be used outside of a capture
