"""Federated learning: ``tersor.federated.flower``, ``.nvflare``, and ``.sums`` for secure sums.

Each module is imported by itself, because it needs its framework.
"""
