"""An import of ``tersor.torch``, and the names that its modules show."""

import subprocess
import sys

import pytest

pytest.importorskip("torch")


def test_an_import_leaves_the_compiler_out() -> None:
    """``torch._dynamo`` takes longer to import than all other modules that Tersor adds."""
    program = """
import sys
import torch
before = set(sys.modules)
for name in ["optim", "diloco", "fsdp", "backend", "hvd", "run", "pipeline"]:
    __import__(f"tersor.torch.{name}")
added = [name for name in sys.modules if name.startswith("torch._") and name not in before]
print({name.split(".")[1] for name in added} & {"_dynamo", "_inductor", "_functorch"})
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
