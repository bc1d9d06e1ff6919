"""The backend ``tersor`` of torch.distributed: ``init_process_group("tersor")``.

The backend needs PyTorch 2.15 or newer. With an older PyTorch, the import raises ImportError.
:class:`TersorGroup` lists the encoded calls.
"""

from tersor.torch._src.backend.configuration import Configuration, configure
from tersor.torch._src.backend.process_group import TersorGroup, register

__all__ = ["Configuration", "TersorGroup", "configure", "register"]
