"""Kombu's Redis transport with a fix: a worker whose acknowledgement failed goes on consuming.

Kombu 5.7 keeps a message whose acknowledgement failed (the broker was restarted) in its list of unacknowledged ones.
With a prefetch limit of one per slot the worker then waits for ever: it is at its limit, stops reading, and so never
notices the dead connection. Here the message is dropped from the list; delivered again, its step is already claimed.
"""

from __future__ import annotations

from kombu.transport import redis, virtual


class QoS(redis.QoS):
    """The list of unacknowledged messages."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge; a message whose acknowledgement failed does not count against the limit either."""
        try:
            super().ack(delivery_tag)  # type: ignore[no-untyped-call]
        except self.channel.connection_errors:
            virtual.QoS.ack(self, delivery_tag)  # type: ignore[no-untyped-call]
            raise


class Channel(redis.Channel):
    """A channel with this list."""

    QoS = QoS


class Transport(redis.Transport):
    """The transport that the setting ``broker_transport`` names."""

    Channel = Channel
