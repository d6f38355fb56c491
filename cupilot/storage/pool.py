"""The strategy pool on Chroma: what earlier jobs learned, found again for similar problems.

Postgres holds the truth (:mod:`cupilot.storage.pool_rows`); this is an index that may be made anew at any time.
Retrieval: hard filters first (team, target, operator family, compatible policy), then similarity of the reference's
description, then what each strategy gained. Chroma is imported when the pool is first used (1 to 2 s).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from math import log
from typing import Any, TypeVar
from urllib.parse import urlsplit

from cupilot.errors import Unavailable
from cupilot.pool import PoolEntry, PoolMatch, operators, shapes
from cupilot.problem import NumericsPolicy, ProblemFacts, Role, Target
from cupilot.roofline import Zone
from cupilot.storage.embedder import NAME as EMBEDDER
from cupilot.storage.embedder import Embedder, describe
from cupilot.storage.pool_ranking import Neighbour, Ranked, rank
from cupilot.storage.pool_vectors import entry_vector, query_vector, similarity

COLLECTION = f"strategy-pool-{EMBEDDER}"

NEIGHBOURS = 1_000
"""Nearest entries of each kind (counting or not) that are looked at; the rest of a larger pool is less similar."""

BATCH = 500
"""Entries an upsert; Chroma refuses more than about 5,000."""

TIMEOUT_SECONDS = 30.0
"""Chroma's client waits for ever by default, and a worker with it."""

_COMPATIBLE = {
    NumericsPolicy.FP32: (NumericsPolicy.FP32,),
    NumericsPolicy.TF32: (NumericsPolicy.FP32, NumericsPolicy.TF32),
    NumericsPolicy.HALF: (NumericsPolicy.FP32, NumericsPolicy.TF32, NumericsPolicy.HALF),
}
"""What a policy allows includes what a stricter one does, never the other way round."""

_INDEX = {"space": "cosine", "ef_search": NEIGHBOURS, "ef_construction": 200}
"""A search that keeps fewer than the neighbours it is to find misses some."""

Answer = TypeVar("Answer")


class StrategyPool:
    """The pool of all teams on one Chroma server; every read is of one team. Threads and processes may share it."""

    def __init__(self, chroma_url: str) -> None:
        self._url = chroma_url
        self._embedder = Embedder()
        self._lock = threading.Lock()
        self._client: Any = None
        self._collection: Any = None
        self._pid = 0

    def add(self, entries: Sequence[PoolEntry]) -> None:
        """Index entries; one that is there already is replaced. Raises :class:`Unavailable`."""
        telling = list({entry.id: entry for entry in entries if entry.informative}.values())
        for start in range(0, len(telling), BATCH):
            self._upsert(telling[start : start + BATCH])

    def retrieve(
        self,
        team: str,
        facts: ProblemFacts,
        problem_name: str,
        *,
        target: Target,
        zone: Zone,
        device_class: str,
        limit: int = 8,
        before: datetime | None = None,
    ) -> list[PoolMatch]:
        """At most ``limit`` entries of different strategies: the promising ones first, then some to avoid.

        With ``before``, the pool is as it was at that time: entries made since are not seen.

        Of problems of the same operator family or, where the team has none, of the same roofline zone. Entries that
        did not count are recognised by their verdict. Raises :class:`Unavailable`.
        """
        inputs = facts.with_role(Role.INPUT) or facts.tensors
        text = describe(problem_name, facts.op_class, operators(facts), inputs[0].dtype.value, shapes(facts))
        vector = query_vector(self._embedder.embed([text])[0])
        common: list[dict[str, Any]] = [
            {"team": team},
            {"target": target.value},
            {"policy": {"$in": [policy.value for policy in _COMPATIBLE[facts.policy]]}},
        ]
        if before is not None:
            common.append({"made": {"$lt": before.timestamp()}})
        for family in ({"op_class": facts.op_class}, {"zone": zone.value}):
            neighbours = self._neighbours(vector, [*common, family])
            if neighbours:
                return self._matches(rank(neighbours, device_class, limit))
        return []

    def count(self) -> int:
        """Entries of all teams. Raises :class:`Unavailable`."""
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

    def _upsert(self, entries: Sequence[PoolEntry]) -> None:
        embeddings = self._embedder.embed([_description(entry) for entry in entries])
        vectors = [entry_vector(embedding, entry.id) for embedding, entry in zip(embeddings, entries, strict=True)]
        self._ask(
            lambda collection: collection.upsert(
                ids=[entry.id for entry in entries],
                embeddings=vectors,
                metadatas=[_metadata(entry) for entry in entries],
                documents=[entry.model_dump_json() for entry in entries],
            )
        )

    def _neighbours(self, vector: list[float], conditions: list[dict[str, Any]]) -> list[Neighbour]:
        """Entries that count and entries that do not, so that many failures never crowd out the gains."""
        return [one for counts in (True, False) for one in self._nearest(vector, [*conditions, {"counts": counts}])]

    def _nearest(self, vector: list[float], conditions: list[dict[str, Any]]) -> list[Neighbour]:
        answer = self._ask(
            lambda collection: collection.query(
                query_embeddings=[vector],
                n_results=NEIGHBOURS,
                where={"$and": conditions},
                include=["metadatas", "distances"],
            )
        )
        rows = zip(answer["ids"][0], answer["distances"][0], answer["metadatas"][0], strict=True)
        return [_neighbour(*row) for row in rows]

    def _matches(self, ranked: Sequence[Ranked]) -> list[PoolMatch]:
        answer = self._ask(lambda collection: collection.get(ids=[one.id for one in ranked], include=["documents"]))
        entries = {
            key: PoolEntry.model_validate_json(document)
            for key, document in zip(answer["ids"], answer["documents"], strict=True)
        }
        return [
            PoolMatch(entry=entries[one.id], similarity=one.similarity, score=one.score)
            for one in ranked
            if one.id in entries
        ]

    def _ask(self, question: Callable[[Any], Answer]) -> Answer:
        """Ask the collection; once more, if another process cleared the pool since it was looked up."""
        from chromadb.errors import NotFoundError

        with self._availability():
            try:
                return question(self._opened())
            except NotFoundError:
                return question(self._opened(anew=True))

    def _opened(self, *, anew: bool = False) -> Any:
        with self._lock:
            client = self._client_of_this_process()
            if self._collection is None or anew:
                self._collection = client.get_or_create_collection(
                    COLLECTION, embedding_function=None, configuration={"hnsw": _INDEX}
                )
            return self._collection

    def _connected(self) -> Any:
        with self._lock:
            return self._client_of_this_process()

    def _client_of_this_process(self) -> Any:
        if self._client is None or self._pid != os.getpid():
            self._client, self._collection, self._pid = _connect(self._url), None, os.getpid()
        return self._client

    @contextmanager
    def _availability(self) -> Iterator[None]:
        """Report a Chroma that does not answer, or answers with a fault of its own, as :class:`Unavailable`."""
        try:
            yield
        except Exception as error:
            if not _is_fault_of_server(error):
                raise
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


def _connect(url: str) -> Any:
    import chromadb
    import httpx
    from chromadb.config import Settings

    # The first requests of Chroma's client wait without limit, so it is asked to connect only where somebody answers.
    httpx.get(f"{url.rstrip('/')}/api/v2/heartbeat", timeout=TIMEOUT_SECONDS).raise_for_status()
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
        session.timeout = TIMEOUT_SECONDS
    return client


def _sessions(client: Any) -> list[Any]:
    """The ``httpx.Client`` objects inside: Chroma's client neither bounds their waits nor closes them."""
    return [part._server._session for part in (client, client._admin_client)]


def _description(entry: PoolEntry) -> str:
    return describe(entry.problem_name, entry.op_class, entry.operators, entry.dtype, entry.shapes)


def _metadata(entry: PoolEntry) -> dict[str, str | float | bool]:
    """What is filtered and ranked by; a gain is left out where there is none, since Chroma knows no null."""
    metadata: dict[str, str | float | bool] = {
        "team": entry.team,
        "target": entry.target.value,
        "op_class": entry.op_class,
        "policy": entry.policy.value,
        "device_class": entry.device_class,
        "zone": entry.zone.value,
        "verdict": entry.verdict.value,
        "signature": entry.strategy.signature(),
        "counts": entry.verdict.counts,
        "made": datetime.fromisoformat(entry.created_at).timestamp(),
    }
    if entry.verdict.counts and entry.speedup:
        metadata["gain"] = log(entry.speedup)
    return metadata


def _neighbour(key: str, distance: float, metadata: dict[str, Any]) -> Neighbour:
    return Neighbour(
        id=key,
        signature=metadata["signature"],
        similarity=similarity(distance),
        device_class=metadata["device_class"],
        gain=metadata.get("gain"),
    )
