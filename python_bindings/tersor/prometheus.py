"""What a handle of ``tersor.torch`` counts, for Prometheus.

::

    REGISTRY.register(tersor.prometheus.Collector(handle))  # prometheus_client's registry
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

try:
    from prometheus_client.core import GaugeMetricFamily
except ModuleNotFoundError as error:
    if error.name != "prometheus_client":
        raise
    raise ModuleNotFoundError(
        "tersor.prometheus needs prometheus-client: pip install prometheus-client",
        name="prometheus_client",
    ) from error

if TYPE_CHECKING:
    from tersor.torch._src.statistics.handles import Reporting


class Collector:
    """Gauges ``tersor_sent_bytes`` and so on, one for each of ``handle.scalars()``, as they stand.

    ``rank``, where it is given, becomes their label. Each scrape asks the handle, which tells of
    the steps that are complete.
    """

    def __init__(self, handle: Reporting, rank: int | None = None) -> None:
        self._handle = handle
        self._labels = {} if rank is None else {"rank": str(rank)}

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """What prometheus_client calls."""
        for name, value in self._handle.scalars().items():
            gauge = GaugeMetricFamily(
                name.replace("/", "_"), "From tersor's handle.scalars().", labels=list(self._labels)
            )
            gauge.add_metric(list(self._labels.values()), value)
            yield gauge
