"""Measures trainings, backward passes and codecs: ``python -m tersor.bench --help``.

The benchmark compares Tersor with PyTorch's own ways: `DistributedDataParallel` without a
communication hook, its bf16, fp16 and PowerSGD hooks, and uncompressed exchanges of activations.
Records have the form of ``tersor-bench``, so ``tersor-bench report`` draws them.
"""
