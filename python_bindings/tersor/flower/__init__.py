"""Federated learning on Flower: clients send frames of our codecs.

``compress`` is a mod of the client app, ``Strategy`` wraps one of Flower's on the server:
``docs/federated.md``. Needs flwr 1.42 or later.
"""

from tersor.flower.client import compress
from tersor.flower.strategy import Strategy

__all__ = ["Strategy", "compress"]
