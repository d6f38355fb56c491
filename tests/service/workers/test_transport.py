"""The one thing that our transport does differently: a failed acknowledgement does not count for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu import Connection
from redis.exceptions import ConnectionError as BrokerGone

from cupilot.embedded.servers import Running, start_valkey

pytestmark = pytest.mark.service


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Running]:
    running = start_valkey(tmp_path)
    yield running
    running.stop()


def test_a_message_that_cannot_be_acknowledged_makes_room_for_the_next(broker: Running) -> None:
    connection = Connection(broker.url, transport="workers.transport:Transport")
    queue = connection.SimpleQueue("steps")
    queue.put({"step": 1})
    message = queue.get(timeout=10)
    qos = message.channel.qos
    qos.prefetch_count = 1
    assert not qos.can_consume(), "one is being worked on, and one is the limit"
    broker.kill()
    with pytest.raises(BrokerGone):
        message.ack()
    assert qos.can_consume()
    connection.release()
