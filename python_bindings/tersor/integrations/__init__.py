"""Tersor as an extension of other frameworks. Each module needs PyTorch and the framework."""
