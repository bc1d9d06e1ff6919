"""Federated learning: ``tersor.federated.flower``, ``.nvflare``, and ``.sums`` for secure sums.

Import each module by name, because each needs a framework.
"""
