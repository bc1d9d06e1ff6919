"""Measures trainings, backward passes and codecs: ``python -m tersor.bench --help``.

Everything is compared with what PyTorch has itself: `DistributedDataParallel` without a
communication hook, and its bf16, fp16 and PowerSGD hooks; where a model is split over ranks, with
its own exchanges of activations. Records have the form of ``tersor-bench``, so ``tersor-bench
report`` draws them.
"""
