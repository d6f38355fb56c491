"""The strategy pool's vector index, on Chroma: which descriptions of references are near a text.

Postgres holds the truth (:mod:`cupilot.storage.pool.references`); this is an index that may be made anew any time. It
has ids, vectors and what is filtered by: no text, no outcome. It speaks Chroma's HTTP API, version 2
(https://docs.trychroma.com/reference), as Chroma's own client neither bounds its waits nor closes its connections.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import httpx

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

_COLLECTIONS = "/api/v2/tenants/default_tenant/databases/default_database/collections"
_INDEX = {"space": "cosine", "ef_search": 2 * NEIGHBOURS, "ef_construction": 200}
"""A search that keeps fewer than the neighbours it is to find misses some."""
_REFUSED = (400, 422)
"""Statuses of a request that Chroma does not understand: a fault of this module."""


class StrategyPool:
    """The index of all teams' descriptions on one Chroma server. Threads and processes may share it."""

    def __init__(self, chroma_url: str, *, timeout: float = TIMEOUT_SECONDS, rest: float = 0.0) -> None:
        """Take the server's address; for ``rest`` seconds after a failure calls are Unavailable at once.

        ``timeout`` bounds each wait, but that for descriptions to be stored, which takes :data:`TIMEOUT_SECONDS`.
        """
        self._url = chroma_url
        self._timeout = timeout
        self._rest = rest
        self._away_until = float("-inf")
        self._embedder = Embedder()
        self._lock = threading.Lock()
        self._client: httpx.Client | None = None
        self._collection: str | None = None
        self._pid = 0

    def add(self, references: Sequence[Reference]) -> None:
        """Index descriptions; one that is there already is replaced. Raises :class:`Unavailable`."""
        distinct = list({reference.id: reference for reference in references}.values())
        for start in range(0, len(distinct), BATCH):
            self._upsert(distinct[start : start + BATCH])

    def nearest(
        self, text: str, scopes: Sequence[str], *, target: str, policies: Sequence[str], **place: str | Sequence[str]
    ) -> dict[str, float]:
        """Return ids of these scopes' nearest descriptions with cosines, 0 to 1; at most :data:`NEIGHBOURS`.

        ``place`` is ``op_class`` (one or several) or ``zone``. Raises :class:`Unavailable`.
        """
        vector = query_vector(self._embedder.embed([text])[0])
        conditions: list[dict[str, Any]] = [
            {"scope": {"$in": list(scopes)}},
            {"target": target},
            {"policy": {"$in": list(policies)}},
            *({name: value if isinstance(value, str) else {"$in": list(value)}} for name, value in place.items()),
        ]
        answer = self._ask(
            "POST",
            "query",
            {
                "query_embeddings": [vector],
                "n_results": NEIGHBOURS,
                "where": {"$and": conditions},
                "include": ["distances"],
            },
        )
        rows = zip(answer["ids"][0], answer["distances"][0], strict=True)
        return {key: similarity(distance) for key, distance in rows}

    def count(self) -> int:
        """Return the number of descriptions of all teams. Raises :class:`Unavailable`."""
        return int(self._ask("GET", "count"))

    def clear(self) -> None:
        """Forget everything, of all teams, before a rebuild. Raises :class:`Unavailable`."""
        with self._availability(), suppress(_NoCollection):
            self._request("DELETE", f"{_COLLECTIONS}/{COLLECTION}")

    def ping(self) -> None:
        """Raise :class:`Unavailable` unless Chroma answers."""
        with self._availability():
            self._request("GET", "/api/v2/heartbeat")

    def close(self) -> None:
        """Close this process's connections; the next call would open new ones."""
        with self._lock:
            if self._client is not None and self._pid == os.getpid():
                self._client.close()
            self._client = self._collection = None

    def _upsert(self, references: Sequence[Reference]) -> None:
        keys = [str(reference.id) for reference in references]
        embeddings = self._embedder.embed([reference.text for reference in references])
        vectors = [entry_vector(embedding, key) for embedding, key in zip(embeddings, keys, strict=True)]
        metadatas = [_metadata(reference) for reference in references]
        body = {"ids": keys, "embeddings": vectors, "metadatas": metadatas}
        self._ask("POST", "upsert", body, timeout=TIMEOUT_SECONDS)

    def _ask(
        self, method: str, action: str, body: dict[str, Any] | None = None, *, timeout: float | None = None
    ) -> Any:
        """Ask the collection; once more, if another process cleared the pool since it was looked up."""
        with self._availability():
            try:
                return self._request(method, f"{_COLLECTIONS}/{self._opened()}/{action}", body, timeout)
            except _NoCollection:
                return self._request(method, f"{_COLLECTIONS}/{self._opened(anew=True)}/{action}", body, timeout)

    def _opened(self, *, anew: bool = False) -> str:
        """Return the id of the collection, which is made where there is none."""
        client = self._connected()
        with self._lock:
            collection = self._collection if self._client is client and not anew else None
        if collection is None:
            wanted = {
                "name": COLLECTION,
                "configuration": {"hnsw": _INDEX, "spann": None, "embedding_function": {"type": "legacy"}},
                "get_or_create": True,
            }
            collection = str(self._request("POST", _COLLECTIONS, wanted)["id"])
            with self._lock:
                self._collection = collection
        return collection

    def _connected(self) -> httpx.Client:
        """Return this process's client; one of a parent process is left alone."""
        with self._lock:
            if self._client is None or self._pid != os.getpid():
                self._client = httpx.Client(base_url=self._url, timeout=self._timeout)
                self._collection, self._pid = None, os.getpid()
            return self._client

    def _request(self, method: str, path: str, body: dict[str, Any] | None = None, timeout: float | None = None) -> Any:
        if time.monotonic() < self._away_until:
            raise Unavailable(
                "the strategy pool did not answer a moment ago", hint="the service asks it again in a few seconds"
            )
        response = self._connected().request(method, path, json=body, timeout=timeout or self._timeout)
        if response.status_code == httpx.codes.NOT_FOUND:
            raise _NoCollection(response.text)
        if response.status_code in _REFUSED:
            raise ValueError(f"Chroma rejected the request: {response.text[:500]}")
        if response.is_error:
            raise _Fault(response.text or f"status {response.status_code}")
        return response.json()

    @contextmanager
    def _availability(self) -> Iterator[None]:
        """Report a Chroma that does not answer, or answers with a fault of its own, as :class:`Unavailable`."""
        try:
            yield
        except (httpx.HTTPError, _Fault, _NoCollection) as error:
            self._away_until = time.monotonic() + self._rest
            raise Unavailable(
                f"the strategy pool does not answer: {error or type(error).__name__}",
                hint="check that Chroma runs and that CUPILOT_CHROMA_URL is its address",
            ) from error


class _Fault(Exception):
    """Chroma, or a proxy before it, answered with an error."""


class _NoCollection(Exception):
    """Chroma does not have the collection (any more)."""


def _metadata(reference: Reference) -> dict[str, str]:
    return {
        "scope": reference.scope,
        "target": reference.target,
        "policy": reference.policy,
        "op_class": reference.op_class,
        "zone": reference.zone,
    }
