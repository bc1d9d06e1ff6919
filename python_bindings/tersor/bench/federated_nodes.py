"""Runs Flower clients in turn in this process. Each client keeps a separate state."""

import contextlib
import copy
import importlib
import types
from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid


def name_this_process() -> None:
    """Sets the identity required by Flower 1.38 and later for messages."""
    with contextlib.suppress(ModuleNotFoundError):
        identity = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
        identity.task_id = identity.run_id = identity.node_id = 1


class Nodes(Grid):
    """Runs the nodes. If a node raises, the answer is an error, as in Flower's own processes."""

    def __init__(
        self, app: ClientApp, nodes: Iterable[int], run_config: Mapping[str, Any] | None = None
    ) -> None:
        self.app, self.nodes, self._config = app, list(nodes), dict(run_config or {})
        self.states: dict[int, RecordDict] = {node: RecordDict() for node in self.nodes}
        name_this_process()

    def set_run(self, run: Any) -> None:
        """Ignored, because all messages belong to the same run."""

    @property
    def run(self) -> Any:
        """The run, with only the run's number."""
        return types.SimpleNamespace(run_id=1)

    def push_messages(self, *_: Any, **__: Any) -> Any:
        """Not supported: senders wait for the answers."""
        raise NotImplementedError

    create_message = pull_messages = push_messages

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """The answers, in the order of the messages."""
        return [self.answer(copy.deepcopy(one)) for one in messages]

    def answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        node_config = {"partition-id": self.nodes.index(node)}
        context = Context(1, node, node_config, self.states[node], self._config)
        try:
            return self.app(message, context)
        except Exception as error:
            return Message(
                Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message
            )
