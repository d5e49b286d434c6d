"""Metrics of the service for Prometheus."""

from functools import partial

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
    """Metrics of one server and of its process (memory, CPU time, open files)."""

    media_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        counter = partial(Counter, registry=self._registry)
        histogram = partial(Histogram, registry=self._registry)
        self.requests = counter("detlite_requests", "Responses of /predict", ["status"])
        self.seconds = histogram(
            "detlite_request_seconds",
            "Time from the header of a request to its response with status 200",
            buckets=_SECONDS,
        )
        self.in_progress = Gauge(
            "detlite_requests_in_progress", "Requests waiting or running", registry=self._registry
        )
        self.batch_size = histogram(
            "detlite_batch_images", "Images in a batch", buckets=(1, 2, 4, 8, 16, 32, 64)
        )
        self.batch_seconds = histogram(
            "detlite_batch_seconds", "Time of the network for a batch", buckets=_SECONDS
        )
        self.detections = counter("detlite_detections", "Detections in responses")

    def observe_batch(self, images: int, seconds: float) -> None:
        """Record a batch."""
        self.batch_size.observe(images)
        self.batch_seconds.observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)
