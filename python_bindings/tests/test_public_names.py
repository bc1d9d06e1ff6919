"""An import of ``tersor.torch``, and the names that its modules show."""

import importlib
import subprocess
import sys
import typing
from typing import Any

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
    ran = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    assert ran.stdout.strip() == b"set()"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="typing.get_overloads is of Python 3.11")
def test_the_types_of_compress_refuse_for_ddp_what_a_call_refuses() -> None:
    typed: Any = typing
    torch = importlib.import_module("tersor.torch")
    ddp = importlib.import_module("torch.nn.parallel").DistributedDataParallel
    hints = [typing.get_type_hints(one) for one in typed.get_overloads(torch.compress)]
    for_ddp = [one for one in hints if issubclass(ddp, one["model"])]
    assert len(for_ddp) == len(hints) - 1 == 2
    for one in for_ddp:
        assert "weights_codec" not in one
        assert torch.fsdp.ShardedOptions not in typing.get_args(one.get("advanced"))
