"""The strategy pool's vector index, on Chroma: which descriptions of references are near a text.

Postgres holds the truth (:mod:`cupilot.storage.pool.references`); this is an index that may be made anew any time. It
has ids, vectors and what is filtered by: no text, no outcome. Chroma is imported when it is first used (1 to 2 s).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

from cupilot.domain.errors import Unavailable
from cupilot.storage.pool.embedder import NAME as EMBEDDER
from cupilot.storage.pool.embedder import Embedder
from cupilot.storage.pool.references import Reference
from cupilot.storage.pool.vectors import entry_vector, query_vector, similarity

COLLECTION = f"strategy-references-{EMBEDDER}"

NEIGHBOURS = 256
"""Nearest descriptions that are looked at; those of a larger pool are less similar."""

BATCH = 500
"""Descriptions an upsert; Chroma refuses more than about 5,000."""

TIMEOUT_SECONDS = 30.0
"""Chroma's client waits for ever by default, and a worker with it."""

_INDEX = {"space": "cosine", "ef_search": 2 * NEIGHBOURS, "ef_construction": 200}
"""A search that keeps fewer than the neighbours it is to find misses some."""

Answer = TypeVar("Answer")


class StrategyPool:
    """The index of all teams' descriptions on one Chroma server. Threads and processes may share it."""

    def __init__(self, chroma_url: str, *, timeout: float = TIMEOUT_SECONDS, rest: float = 0.0) -> None:
        """``rest`` are seconds for which a server that did not answer is not asked again: whoever asks is told so."""
        self._url = chroma_url
        self._timeout = timeout
        self._rest = rest
        self._away_until = float("-inf")
        self._embedder = Embedder()
        self._lock = threading.Lock()
        self._client: Any = None
        self._collection: Any = None
        self._pid = 0

    def add(self, references: Sequence[Reference]) -> None:
        """Index descriptions; one that is there already is replaced. Raises :class:`Unavailable`."""
        distinct = list({one.id: one for one in references}.values())
        for start in range(0, len(distinct), BATCH):
            self._upsert(distinct[start : start + BATCH])

    def nearest(
        self, text: str, scopes: Sequence[str], *, target: str, policies: Sequence[str], **place: str
    ) -> dict[str, float]:
        """Ids of the nearest descriptions of these scopes with their cosines, 0 to 1, at most :data:`NEIGHBOURS`.

        ``place`` is ``op_class`` or ``zone``. Raises :class:`Unavailable`.
        """
        vector = query_vector(self._embedder.embed([text])[0])
        conditions: list[dict[str, Any]] = [
            {"scope": {"$in": list(scopes)}},
            {"target": target},
            {"policy": {"$in": list(policies)}},
            *({name: value} for name, value in place.items()),
        ]
        answer = self._ask(
            lambda collection: collection.query(
                query_embeddings=[vector],
                n_results=NEIGHBOURS,
                where={"$and": conditions},
                include=["distances"],
            )
        )
        rows = zip(answer["ids"][0], answer["distances"][0], strict=True)
        return {key: similarity(distance) for key, distance in rows}

    def count(self) -> int:
        """Descriptions of all teams. Raises :class:`Unavailable`."""
        return self._ask(lambda collection: int(collection.count()))

    def clear(self) -> None:
        """Forget everything, of all teams, before a rebuild. Raises :class:`Unavailable`."""
        from chromadb.errors import NotFoundError

        with self._availability(), suppress(NotFoundError):
            self._connected().delete_collection(COLLECTION)

    def ping(self) -> None:
        """Raise :class:`Unavailable` unless Chroma answers."""
        with self._availability():
            self._connected().heartbeat()

    def close(self) -> None:
        """Close this process's connections; the next call would open new ones."""
        with self._lock:
            if self._client is not None and self._pid == os.getpid():
                for session in _sessions(self._client):
                    session.close()
                self._client.close()
            self._client = self._collection = None

    def _upsert(self, references: Sequence[Reference]) -> None:
        keys = [str(one.id) for one in references]
        embeddings = self._embedder.embed([one.text for one in references])
        vectors = [entry_vector(embedding, key) for embedding, key in zip(embeddings, keys, strict=True)]
        metadatas = [_metadata(one) for one in references]
        self._ask(lambda collection: collection.upsert(ids=keys, embeddings=vectors, metadatas=metadatas))

    def _ask(self, question: Callable[[Any], Answer]) -> Answer:
        """Ask the collection; once more, if another process cleared the pool since it was looked up."""
        from chromadb.errors import NotFoundError

        with self._availability():
            try:
                return question(self._opened())
            except NotFoundError:
                return question(self._opened(anew=True))

    def _opened(self, *, anew: bool = False) -> Any:
        with self._lock, self._availability():
            client = self._client_of_this_process()
            if self._collection is None or anew:
                self._collection = client.get_or_create_collection(
                    COLLECTION, embedding_function=None, configuration={"hnsw": _INDEX}
                )
            return self._collection

    def _connected(self) -> Any:
        with self._lock, self._availability():
            return self._client_of_this_process()

    def _client_of_this_process(self) -> Any:
        if time.monotonic() < self._away_until:
            raise Unavailable("the strategy pool did not answer just now", hint="it is asked again in a few seconds")
        if self._client is None or self._pid != os.getpid():
            self._client, self._collection, self._pid = _connect(self._url, self._timeout), None, os.getpid()
        return self._client

    @contextmanager
    def _availability(self) -> Iterator[None]:
        """Report a Chroma that does not answer, or answers with a fault of its own, as :class:`Unavailable`."""
        try:
            yield
        except Exception as error:
            if not _is_fault_of_server(error):
                raise
            self._away_until = time.monotonic() + self._rest
            raise Unavailable(
                f"the strategy pool does not answer: {error or type(error).__name__}",
                hint="check that Chroma runs and that CUPILOT_CHROMA_URL is its address",
            ) from error


def _is_fault_of_server(error: Exception) -> bool:
    import httpx
    from chromadb.errors import InternalError, RateLimitError

    # Chroma's client raises a bare Exception for an error page that is not its server's, e.g. a proxy's 503.
    return isinstance(error, httpx.HTTPError | InternalError | RateLimitError | _NoServer) or type(error) is Exception


class _NoServer(Exception):
    """Chroma could not be reached when the client was made."""


def _connect(url: str, timeout: float) -> Any:
    import chromadb
    import httpx
    from chromadb.config import Settings

    # The first requests of Chroma's client wait without limit, so it is asked to connect only where somebody answers.
    httpx.get(f"{url.rstrip('/')}/api/v2/heartbeat", timeout=timeout).raise_for_status()
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    try:
        client = chromadb.HttpClient(
            host=parts.hostname or "127.0.0.1",
            port=parts.port or (443 if secure else 80),
            ssl=secure,
            settings=Settings(anonymized_telemetry=False),
        )
    except ValueError as error:  # what the client makes of every failure of its first request
        raise _NoServer(str(error)) from error
    for session in _sessions(client):
        session.timeout = timeout
    return client


def _sessions(client: Any) -> list[Any]:
    """The ``httpx.Client`` objects inside: Chroma's client neither bounds their waits nor closes them."""
    return [part._server._session for part in (client, client._admin_client)]


def _metadata(reference: Reference) -> dict[str, str]:
    return {
        "scope": reference.scope,
        "target": reference.target,
        "policy": reference.policy,
        "op_class": reference.op_class,
        "zone": reference.zone,
    }
