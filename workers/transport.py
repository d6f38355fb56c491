"""Kombu's Redis transport, with one weakness mended: a worker that cannot acknowledge goes on consuming.

Kombu 5.7 keeps a message whose acknowledgement failed (the broker was restarted) on the list of those being worked on.
With a prefetch limit of one a slot the worker then waits for ever: it is at its limit, stops reading, and so never
notices the dead connection. Here the message is forgotten instead; delivered once more, its step is not to be had.
"""

from __future__ import annotations

from kombu.transport import redis, virtual


class QoS(redis.QoS):
    """Which messages are being worked on."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge; a message whose acknowledgement fails no longer counts against the limit either."""
        try:
            super().ack(delivery_tag)  # type: ignore[no-untyped-call]
        except self.channel.connection_errors:
            virtual.QoS.ack(self, delivery_tag)  # type: ignore[no-untyped-call]
            raise


class Channel(redis.Channel):
    """A channel with these messages."""

    QoS = QoS


class Transport(redis.Transport):
    """What ``broker_transport`` names."""

    Channel = Channel
