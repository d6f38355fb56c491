"""The process that starts, watches and stops the parts of one embedded stack in the right order.

Servers start together, then the schema is brought to head, then the roles' gates open. What no job needs (webhooks)
starts once the stack is ready, so that nobody waits for it. Every lasting child is spawned from this process's main
thread (see :mod:`cupilot.embedded.process`); checks that may block run in other threads.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from cupilot.embedded.errors import StartFailed
from cupilot.embedded.folder import Folder, Identity
from cupilot.embedded.guard import Guard
from cupilot.embedded.log_files import bound_logs
from cupilot.embedded.parts import Part, Service
from cupilot.embedded.process import group_exists, kill_group
from cupilot.embedded.pulse import limit_seconds
from cupilot.embedded.report import Endpoint, OnProgress, PartState, Progress, Status, load_status, save_status
from cupilot.embedded.roles import Api, Cluster, Schema, Webhooks, make_workers, stack_settings
from cupilot.embedded.servers import Chroma, Postgres, Valkey
from cupilot.embedded.target import TargetChoice

logger = logging.getLogger(__name__)

HOUSEKEEPING_SECONDS = 5.0
PREDECESSOR_SECONDS = 3.0
"""Children of a killed supervisor have been asked to stop by the kernel; after this long they are made to."""


@contextmanager
def _outlived() -> Iterator[None]:
    """Go on after any error of a chore, which the next round tries again; one that no disk explains is logged."""
    try:
        yield
    except OSError:
        pass
    except Exception:
        logger.exception("a chore of the supervisor failed")


class Supervisor:
    """One run of one stack."""

    def __init__(
        self, folder: Folder, choice: TargetChoice, on_progress: OnProgress, model_calls: int | None = None
    ) -> None:
        self._folder = folder
        self._choice = choice
        self._on_progress = on_progress
        self._since = time.monotonic()
        self._ready = False
        _end_predecessor(folder)
        self._guard = Guard()
        self._identity = identity = Identity.load(folder)
        postgres, valkey, chroma = Postgres(folder, identity), Valkey(folder, identity), Chroma(folder, identity)
        port = int(os.environ.get("CUPILOT_API_PORT") or identity.port("api"))
        settings = stack_settings(folder, port, postgres.url, valkey.url, chroma.url)
        self._url = f"http://127.0.0.1:{port}"
        self._hangs_after = limit_seconds(settings)
        cluster = Cluster(self._url, folder.api_key)
        self._postgres = self._part(postgres)
        self._other_servers = [self._part(valkey), self._part(chroma)]
        self._schema = self._part(Schema(folder, settings))
        workers = make_workers(folder, settings, cluster, choice.gpus, model_calls)
        self._roles = [self._part(role) for role in (Api(settings, cluster), *workers)]
        self._late = [self._part(Webhooks(folder, settings))]

    async def run(self, stop: asyncio.Event, on_ready: Callable[[Endpoint], None]) -> None:
        """Start everything, call ``on_ready``, watch until ``stop`` is set, then stop everything.

        Raises :class:`StartFailed` when a part does not come up; then nothing is left running.
        """
        tasks: list[asyncio.Task[None]] = []
        try:
            boot = asyncio.create_task(self._boot())
            stopped = asyncio.create_task(_wait(stop))
            tasks += [boot, stopped]
            await asyncio.wait({boot, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if boot.done():
                boot.result()
                tasks += [asyncio.create_task(part.watch()) for part in self._awaited]
                tasks.append(asyncio.create_task(self._maintain()))
                on_ready(self._announce())
                tasks += [asyncio.create_task(part.start_and_watch()) for part in self._late]
                await stopped
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stop()

    def kill(self) -> None:
        """End every part at once (a second Ctrl-C)."""
        for part in self._all:
            part.kill()

    @property
    def seconds(self) -> float:
        """Since it began to start, or to stop, the stack."""
        return time.monotonic() - self._since

    @property
    def _awaited(self) -> list[Part]:
        return [self._postgres, *self._other_servers, *self._roles]

    @property
    def _services(self) -> list[Part]:
        return [*self._awaited, *self._late]

    @property
    def _all(self) -> list[Part]:
        return [*self._services, self._schema]

    async def _boot(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                servers = [group.create_task(self._serve(part)) for part in self._other_servers]
                database = group.create_task(self._serve(self._postgres))
                for part in [self._schema, *self._roles]:
                    await part.start(gated=True)
                await database
                self._schema.open_gate()
                await self._schema.finish()
                await asyncio.gather(*servers)
                for part in self._roles:
                    part.open_gate()
                    group.create_task(part.become_ready())
        except BaseExceptionGroup as failures:
            started, _ = failures.split(StartFailed)
            raise _first(started or failures) from None

    async def _serve(self, part: Part) -> None:
        await part.start()
        await part.become_ready()

    def _announce(self) -> Endpoint:
        self._ready = True
        with suppress(OSError):
            self._folder.url.write_text(self._url + "\n")
        self._save()
        return Endpoint(self._url, self._folder.api_key.read_text().strip())

    async def _stop(self) -> None:
        """Stop roles first, while they can still reach the servers; Postgres last."""
        self._since, self._ready = time.monotonic(), False
        with suppress(OSError):
            self._folder.url.unlink(missing_ok=True)
        for parts in ([*self._late, *self._roles, self._schema], self._other_servers, [self._postgres]):
            await asyncio.gather(*(part.stop() for part in parts))
        self._guard.close()
        self._save()

    async def _maintain(self) -> None:
        """Bound the logs, keep the guard and the folder's files; first make what initdb wrote without syncing safe.

        Nothing that a full disk or a read-only folder does to it ends it: the next round may get further.
        """
        await asyncio.to_thread(os.sync)
        while True:
            with _outlived():
                self._guard.keep()
            with _outlived():
                await asyncio.to_thread(bound_logs, self._folder)
            with _outlived():
                await self._mend()
            await asyncio.sleep(HOUSEKEEPING_SECONDS)

    async def _mend(self) -> None:
        """Write again what was lost or could not be written: state, identity, URL, and a key that opens nothing."""
        self._save()
        with suppress(OSError):
            self._identity.keep()
            if not self._folder.url.exists():
                self._folder.url.write_text(self._url + "\n")
        if not self._folder.api_key.exists():
            with suppress(StartFailed, OSError):
                await self._schema.start()
                await self._schema.finish()

    def _part(self, service: Service) -> Part:
        return Part(
            service,
            self._folder.log(service.name),
            self._guard,
            self._changed,
            pulse=self._folder.pulse(service.name),
            hangs_after=self._hangs_after,
        )

    def _changed(self, part: Part, note: str) -> None:
        """Tell of a part's new state. A report that cannot be written must not end whoever watches the part."""
        with suppress(OSError):
            self._on_progress(Progress(part.name, part.state, self.seconds, note))
        self._save()

    def _save(self) -> None:
        parts = [part.status for part in self._services]
        stopped = all(part.state is PartState.STOPPED for part in parts)
        url = self._url if self._ready else None
        pid = None if stopped else os.getpid()
        complete = self._ready and all(part.state is PartState.READY for part in self._awaited)
        status = Status(not stopped, complete, pid, url, self._choice.target, self._choice.reason, parts)
        with suppress(OSError):  # written again by the next change, or by _maintain
            save_status(self._folder, status)


async def _wait(stop: asyncio.Event) -> None:
    await stop.wait()


def _first(failures: BaseException) -> BaseException:
    while isinstance(failures, BaseExceptionGroup):
        failures = failures.exceptions[0]
    return failures


def _end_predecessor(folder: Folder) -> None:
    """End children that outlived a killed supervisor of this folder.

    Their death signal, and the guard, are at it already: this only shortens the wait.
    """
    groups = [part.pid for part in load_status(folder).parts if part.pid and _is_group_of(part.pid, part.created)]
    deadline = time.monotonic() + PREDECESSOR_SECONDS
    while any(map(group_exists, groups)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for group in groups:
        if group_exists(group):
            kill_group(group)


def _is_group_of(pid: int, created: float | None) -> bool:
    """Return whether the group is still the one that was saved.

    A reused number's leader was created at another time.
    """
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).create_time() == created
    return True
