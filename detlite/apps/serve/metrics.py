"""What the server counts, as Prometheus scrapes it."""

from __future__ import annotations

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    """Counters of one server, beside the process's own (memory, processor time, open files)."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self.requests = Counter(
            "detlite_requests", "Answers of /predict", ["status"], registry=self._registry
        )
        self.seconds = Histogram(
            "detlite_request_seconds",
            "From the head of a request to its answer, of those with status 200",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.in_progress = Gauge(
            "detlite_requests_in_progress", "Requests that wait or run", registry=self._registry
        )
        self.batch_size = Histogram(
            "detlite_batch_pictures",
            "Pictures that were predicted together",
            buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=self._registry,
        )
        self.batch_seconds = Histogram(
            "detlite_batch_seconds",
            "The network's time for a batch",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.detections = Counter(
            "detlite_detections", "Detections in answers", registry=self._registry
        )

    def batch(self, pictures: int, seconds: float) -> None:
        """Counts a batch."""
        self.batch_size.observe(pictures)
        self.batch_seconds.observe(seconds)

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self._registry)
