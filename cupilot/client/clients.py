"""The two clients: the same methods, over the synchronous and the asynchronous half of httpx."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx

from cupilot import __version__
from cupilot.client.batches import BatchCalls
from cupilot.client.calls import ModelCalls
from cupilot.client.champion_calls import ChampionCalls
from cupilot.client.definitions import AsyncRunner, SyncRunner
from cupilot.client.endpoint import find_endpoint
from cupilot.client.event_calls import EventCalls
from cupilot.client.experiments import ExperimentCalls
from cupilot.client.jobs import JobCalls
from cupilot.client.people import PeopleCalls
from cupilot.client.pool import PoolCalls
from cupilot.client.protocol import Call, Emit, LineSplitter, NextLine, Open, Pause, Script, Send, Service, Stream
from cupilot.client.rankings import RankingCalls
from cupilot.client.results import ResultCalls
from cupilot.client.service import ServiceCalls
from cupilot.client.steering import SteeringCalls
from cupilot.client.step_calls import StepCalls
from cupilot.client.techniques import TechniqueCalls
from cupilot.client.webhook_calls import WebhookCalls

T = TypeVar("T")


class Calls(
    JobCalls,
    SteeringCalls,
    PeopleCalls,
    EventCalls,
    ModelCalls,
    ResultCalls,
    StepCalls,
    ExperimentCalls,
    PoolCalls,
    ServiceCalls,
    WebhookCalls,
    RankingCalls,
    ChampionCalls,
    TechniqueCalls,
    BatchCalls,
):
    """All methods of a client, grouped by noun."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        data: Path | str | None = None,
        timeout: float = 30.0,
        retries: int = 4,
    ) -> None:
        """Find url or key, where they are not given, by :func:`cupilot.client.endpoint.find_endpoint`; NoServer where
        it finds none.

        ``timeout`` is in seconds and for one attempt; ``retries`` counts the attempts after the first.
        """
        endpoint = find_endpoint(url, api_key, Path(data) if data else None)
        self.url = endpoint.url
        self.service = Service(endpoint.url, retries)
        headers = {"User-Agent": f"cupilot/{__version__}"}
        if endpoint.api_key:
            headers["Authorization"] = f"Bearer {endpoint.api_key}"
        # A proxy for the Internet must not swallow calls to a stack on this machine.
        parsed = httpx.URL(self.url)
        local = parsed.host in ("127.0.0.1", "localhost", "::1")
        # Reading the certificates of all authorities takes longer than most calls, and such a stack has no TLS.
        plain = local and parsed.scheme == "http"
        self._connect(base_url=self.url, headers=headers, timeout=timeout, trust_env=not local, verify=not plain)

    @abstractmethod
    def _connect(self, **options: Any) -> None:
        """Make the client of httpx with these options."""


class Client(Calls, SyncRunner):
    """A connection to one service with one team's key. Close it, or use it as a context manager.

    Threads may share it.
    """

    _http: httpx.Client

    def _connect(self, **options: Any) -> None:
        self._http = httpx.Client(**options)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _run(self, steps: Script[T]) -> T:
        outcome: Any = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            outcome = self._perform(step)

    def _iterate(self, steps: Stream[T]) -> Iterator[T]:
        outcome: Any = None
        opened: httpx.Response | None = None
        lines: Iterator[str] = iter(())
        try:
            while True:
                try:
                    step = steps.send(outcome)
                except StopIteration:
                    return
                if isinstance(step, Emit):
                    yield step.item
                    outcome = None
                elif isinstance(step, NextLine):
                    try:
                        outcome = next(lines, None)
                    except httpx.RequestError as error:
                        outcome = error
                elif isinstance(step, Open):
                    if opened is not None:
                        opened.close()
                    outcome = self._open(step.call)
                    opened = outcome if isinstance(outcome, httpx.Response) else None
                    lines = _lines(opened) if opened is not None else iter(())
                else:
                    outcome = self._perform(step)
        finally:
            if opened is not None:
                opened.close()

    def _open(self, call: Call[Any]) -> httpx.Response | httpx.RequestError:
        try:
            response = self._http.send(self._http.build_request(**call.options()), stream=True)
            if not response.is_success:
                response.read()
        except httpx.RequestError as error:
            return error
        return response

    def _perform(self, step: Send | Pause) -> httpx.Response | httpx.RequestError | None:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            return self._http.request(**step.call.options())
        except httpx.RequestError as error:
            return error


def _lines(response: httpx.Response) -> Iterator[str]:
    splitter = LineSplitter()
    for text in response.iter_text():
        yield from splitter.feed(text)


async def _lines_as_they_come(response: httpx.Response) -> AsyncIterator[str]:
    splitter = LineSplitter()
    async for text in response.aiter_text():
        for line in splitter.feed(text):
            yield line


class AsyncClient(Calls, AsyncRunner):
    """Client for an event loop: ``async with``, ``await client.get(job)``, ``async for job in client.all_jobs()``."""

    _http: httpx.AsyncClient

    def _connect(self, **options: Any) -> None:
        self._http = httpx.AsyncClient(**options)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _run(self, steps: Script[T]) -> T:
        outcome: Any = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as end:
                result: T = end.value
                return result
            outcome = await self._perform(step)

    async def _iterate(self, steps: Stream[T]) -> AsyncIterator[T]:
        outcome: Any = None
        opened: httpx.Response | None = None
        lines: AsyncIterator[str] | None = None
        try:
            while True:
                try:
                    step = steps.send(outcome)
                except StopIteration:
                    return
                if isinstance(step, Emit):
                    yield step.item
                    outcome = None
                elif isinstance(step, NextLine):
                    try:
                        outcome = await anext(lines, None) if lines is not None else None
                    except httpx.RequestError as error:
                        outcome = error
                elif isinstance(step, Open):
                    if opened is not None:
                        await opened.aclose()
                    outcome = await self._open(step.call)
                    opened = outcome if isinstance(outcome, httpx.Response) else None
                    lines = _lines_as_they_come(opened) if opened is not None else None
                else:
                    outcome = await self._perform(step)
        finally:
            if opened is not None:
                await opened.aclose()

    async def _open(self, call: Call[Any]) -> httpx.Response | httpx.RequestError:
        try:
            response = await self._http.send(self._http.build_request(**call.options()), stream=True)
            if not response.is_success:
                await response.aread()
        except httpx.RequestError as error:
            return error
        return response

    async def _perform(self, step: Send | Pause) -> httpx.Response | httpx.RequestError | None:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            return await self._http.request(**step.call.options())
        except httpx.RequestError as error:
            return error
