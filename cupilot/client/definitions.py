"""Define a method once for both clients: synchronous on :class:`Client`, awaited on :class:`AsyncClient`.

    class JobCalls:
        @call
        def get(self, job: JobId) -> Call[JobView]:          # client.get(job) -> JobView
            return Call(JobView, "GET", path("v1", "jobs", job))

        @script
        def wait(self, job: JobId) -> Script[JobView]:       # several calls, pauses: await client.wait(job)
            view = yield from JobCalls.get.ask(self, job)

        @stream
        def all(self) -> Stream[JobSummary]:                 # for job in client.all(), async for ...
            yield Emit(item)

Types are exact in both: parameters, and the result or its awaitable, are those of the definition.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from cupilot.client.protocol import Call, Script, Service, Stream, perform

P = ParamSpec("P")
T = TypeVar("T")


class SyncRunner:
    """Runs steps by waiting for them. Implemented by :class:`cupilot.client.clients.Client`."""

    def _run(self, steps: Script[T]) -> T:
        raise NotImplementedError

    def _iterate(self, steps: Stream[T]) -> Iterator[T]:
        raise NotImplementedError


class AsyncRunner:
    """Runs steps in an event loop. Implemented by :class:`cupilot.client.clients.AsyncClient`."""

    async def _run(self, steps: Script[T]) -> T:
        raise NotImplementedError

    def _iterate(self, steps: Stream[T]) -> AsyncIterator[T]:
        raise NotImplementedError


class Definitions(Protocol):
    """The part of a client that a definition may use."""

    service: Service


class ResultMethod(Generic[P, T]):
    """A method that ends with a result."""

    def __init__(self, definition: Callable[Concatenate[Any, P], Script[T]], source: Callable[..., Any]) -> None:
        self._definition = definition
        _copy_metadata(self, source)

    def ask(self, client: Any, *args: P.args, **kwargs: P.kwargs) -> Script[T]:
        """Run the call within another definition: ``view = yield from JobCalls.get.ask(self, job)``."""
        return self._definition(client, *args, **kwargs)

    @overload
    def __get__(self, client: None, owner: type) -> ResultMethod[P, T]: ...
    @overload
    def __get__(self, client: SyncRunner, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncRunner, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        if client is None:
            return self

        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client._run(self._definition(client, *args, **kwargs))

        _copy_metadata(method, self)
        return method


class StreamMethod(Generic[P, T]):
    """A method that yields one item after the other."""

    def __init__(self, definition: Callable[Concatenate[Any, P], Stream[T]]) -> None:
        self._definition = definition
        _copy_metadata(self, definition)

    def steps(self, client: Any, *args: P.args, **kwargs: P.kwargs) -> Stream[T]:
        """Run the script within another definition."""
        return self._definition(client, *args, **kwargs)

    @overload
    def __get__(self, client: None, owner: type) -> StreamMethod[P, T]: ...
    @overload
    def __get__(self, client: SyncRunner, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: AsyncRunner, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: Any, owner: type) -> Any:
        if client is None:
            return self

        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client._iterate(self._definition(client, *args, **kwargs))

        _copy_metadata(method, self)
        return method


def _copy_metadata(wrapper: Any, wrapped: Any) -> None:
    """Copy name, signature and docstring, for help() and documentation."""
    functools.update_wrapper(wrapper, wrapped)


def call(definition: Callable[Concatenate[Any, P], Call[T]]) -> ResultMethod[P, T]:
    """Define a method that is one call."""

    def steps(client: Definitions, /, *args: P.args, **kwargs: P.kwargs) -> Script[T]:
        return perform(client.service, definition(client, *args, **kwargs))

    return ResultMethod(steps, definition)


def script(definition: Callable[Concatenate[Any, P], Script[T]]) -> ResultMethod[P, T]:
    """Define a method of several calls and pauses."""
    return ResultMethod(definition, definition)


def stream(definition: Callable[Concatenate[Any, P], Stream[T]]) -> StreamMethod[P, T]:
    """Define a method that is iterated over."""
    return StreamMethod(definition)
