"""How long requests waited for their GPUs, as the events say that were written down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import Histogram, Metric

from gpupool_manager.transaction import Event

#: From granted at once to a night in the queue.
BUCKETS = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0)

#: What became of a request: nothing else is a label's value.
GRANTED, ENDED = "granted", "ended"


class QueueWaits:
    """A histogram that outlives a reload of the ledger."""

    def __init__(self) -> None:
        self._seconds = Histogram(
            "gpupool_manager_queue_wait_seconds",
            "From a request to its lease, or to leaving the queue without one",
            ["outcome"],
            registry=None,
            buckets=BUCKETS,
        )
        for outcome in (GRANTED, ENDED):
            self._seconds.labels(outcome)

    def take(self, events: Iterable[Event]) -> None:
        """What a transaction has written."""
        for event in events:
            waited = event.detail.get("waited_seconds")
            if event.kind.startswith("lease.") and isinstance(waited, int | float):
                outcome = GRANTED if event.kind == "lease.granted" else ENDED
                self._seconds.labels(outcome).observe(max(0.0, waited))

    def collect(self) -> Iterator[Metric]:
        yield from self._seconds.collect()
