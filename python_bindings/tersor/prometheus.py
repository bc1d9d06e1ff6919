"""Statistics of a handle of ``tersor.torch`` for Prometheus.

::

    REGISTRY.register(tersor.prometheus.Collector(handle))  # prometheus_client's registry
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tersor._options import needs

with needs(
    "prometheus_client", "tersor.prometheus needs prometheus-client: pip install prometheus-client"
):
    from prometheus_client.core import GaugeMetricFamily

if TYPE_CHECKING:
    from tersor.torch._src.statistics.handles import Reporting

__all__ = ["Collector"]
__dir__ = __all__.copy


class Collector:
    """Exports one gauge per entry of ``handle.scalars()``, such as ``tersor_sent_bytes``.

    Each scrape reads the handle's statistics of the completed steps.

    Args:
        handle: A handle of :func:`tersor.torch.compress` or of an optimizer.
        rank: The label ``rank`` of the gauges. Default: no label.
        name: The first part of the gauges' names. Each collector of a registry needs another name.

    Example:
        >>> prometheus_client.REGISTRY.register(tersor.prometheus.Collector(handle, rank=0))
    """

    def __init__(self, handle: Reporting, rank: int | None = None, name: str = "tersor") -> None:
        self._handle, self._name = handle, name
        self._labels = {} if rank is None else {"rank": str(rank)}

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Returns the gauges; prometheus_client makes this call.

        Example:
            >>> names = [gauge.name for gauge in Collector(handle).collect()]
        """
        for name, value in self._handle.scalars().items():
            text, labels = "From tersor's handle.scalars().", list(self._labels)
            gauge_name = f"{self._name}_{name.removeprefix('tersor/')}"
            gauge = GaugeMetricFamily(gauge_name, text, labels=labels)
            gauge.add_metric(list(self._labels.values()), value)
            yield gauge
