"""Limit how many requests a key or an address may send, counted in Redis, or here while that is away.

The generic cell rate algorithm (ITU-T I.371, as in Redis' own documentation of rate limiting): one number a client, the
time at which its bucket would be empty again, so that a burst of a minute's worth is free and the rate is exact after
it. Decides nothing about HTTP, which is :mod:`api.limits`' business.
"""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)

WINDOW_SECONDS = 60.0
PREFIX = "cupilot:rate:"
REDIS_SECONDS = 0.25
"""A limit must not cost more than a request; beyond this the process counts by itself..."""
AWAY_SECONDS = 5.0
"""...and asks Redis again after so long."""
REMEMBERED = 10_000
"""Clients that the process counts by itself; the oldest are forgotten."""

# KEYS[1]: the client. ARGV: limit, window in seconds, cost (0 only looks). Redis' own clock, one for all replicas.
SCRIPT = """
local t = redis.call('TIME')
local now = tonumber(t[1]) + tonumber(t[2]) / 1e6
local limit, window, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or '0') or 0, now)
local after = full + cost * window / limit
local allowed = 1
if after - now > window + 1e-6 then allowed, after = 0, full end
if cost == 0 and full - now > window - window / limit + 1e-6 then allowed = 0 end
if allowed == 1 and cost > 0 then
    redis.call('SET', KEYS[1], string.format('%.6f', after), 'PX', math.ceil((after - now) * 1000) + 1)
end
return {allowed, string.format('%.6f', after - now)}
"""


@dataclass(frozen=True)
class RateLimitState:
    """The rest of a limit."""

    allowed: bool
    limit: int
    """Requests a window."""
    used_seconds: float
    """Level of the bucket, as time until it is empty."""

    @property
    def remaining(self) -> int:
        """Requests that would be accepted now."""
        return max(math.floor((WINDOW_SECONDS - self.used_seconds) / (WINDOW_SECONDS / self.limit) + 1e-6), 0)

    @property
    def retry_seconds(self) -> int:
        """Seconds until one more is accepted, at least 1."""
        return max(math.ceil(self.used_seconds - WINDOW_SECONDS + WINDOW_SECONDS / self.limit), 1)

    @property
    def reset_seconds(self) -> int:
        """Seconds until the whole limit is there again."""
        return math.ceil(self.used_seconds)


class Limiter:
    """Counts requests by client."""

    def __init__(self, redis_url: str) -> None:
        self._redis = Redis.from_url(
            redis_url, socket_timeout=REDIS_SECONDS, socket_connect_timeout=REDIS_SECONDS, retry_on_timeout=False
        )
        self._script = self._redis.register_script(SCRIPT)
        self._away_until = float("-inf")
        self._own: OrderedDict[str, float] = OrderedDict()

    async def take(self, client: str, limit: int, cost: int = 1) -> RateLimitState:
        """Count a request of a client; a ``cost`` of 0 only looks whether one more would be accepted."""
        if time.monotonic() >= self._away_until:
            try:
                answer = self._script(keys=[PREFIX + client], args=[limit, WINDOW_SECONDS, cost])
                allowed, used = await cast(Awaitable[Any], answer)
                return RateLimitState(bool(allowed), limit, max(float(used), 0.0))
            except (RedisError, OSError) as error:
                # Never a reason to refuse, nor to let everything through: each process keeps the limit by itself.
                self._away_until = time.monotonic() + AWAY_SECONDS
                logger.warning("limits are counted by this process: Redis does not answer (%s)", type(error).__name__)
        return self._take_in_process(client, limit, cost)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    def _take_in_process(self, client: str, limit: int, cost: int) -> RateLimitState:
        now = time.monotonic()
        full = max(self._own.pop(client, 0.0), now)
        after = full + cost * WINDOW_SECONDS / limit
        room = WINDOW_SECONDS - (0.0 if cost else WINDOW_SECONDS / limit)
        allowed = after - now <= room + 1e-6
        self._own[client] = after if allowed else full
        if len(self._own) > REMEMBERED:
            self._own.popitem(last=False)
        return RateLimitState(allowed, limit, self._own.get(client, full) - now)
