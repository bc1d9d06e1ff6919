"""Tersor as other frameworks take extensions; each module needs its framework, and PyTorch."""
