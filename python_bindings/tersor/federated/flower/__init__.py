"""Federated learning on Flower: clients send frames of our codecs.

``compress`` is a mod of the client app, ``Strategy`` wraps one of Flower's on the server; with
``secure`` and ``SecureStrategy`` the server learns sums alone: ``docs/systems/federated.md``. Needs
flwr 1.30 or later.
"""

from tersor.federated.flower.client import compress
from tersor.federated.flower.secure_client import secure
from tersor.federated.flower.secure_server import SecureStrategy
from tersor.federated.flower.strategy import Strategy

__all__ = ["SecureStrategy", "Strategy", "compress", "secure"]
