"""Federated learning on Flower: clients send frames of Tersor's codecs.

``compress`` is a mod of the client app. ``Strategy`` wraps one of Flower's strategies on the
server. With ``secure`` and ``SecureStrategy``, the server learns sums only. See
``docs/systems/federated.md``. Needs flwr 1.30 or later.
"""

from tersor.federated.flower.client import compress
from tersor.federated.flower.secure_client import secure
from tersor.federated.flower.secure_server import SecureStrategy
from tersor.federated.flower.strategy import Strategy

__all__ = ["SecureStrategy", "Strategy", "compress", "secure"]
__dir__ = __all__.copy
