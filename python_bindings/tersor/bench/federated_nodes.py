"""Clients of Flower that take turns in this process, each with a state of its own."""

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
    """From 1.38 on Flower asks in whose name messages are made."""
    with contextlib.suppress(ModuleNotFoundError):
        identity = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
        identity.task_id = identity.run_id = identity.node_id = 1


class Nodes(Grid):
    """One that raises answers an error, as Flower's own processes do."""

    def __init__(
        self, app: ClientApp, nodes: Iterable[int], run_config: Mapping[str, Any] | None = None
    ) -> None:
        self.app, self.nodes, self._config = app, list(nodes), dict(run_config or {})
        self.states: dict[int, RecordDict] = {node: RecordDict() for node in self.nodes}
        name_this_process()

    def set_run(self, run: Any) -> None:
        """There is one alone."""

    @property
    def run(self) -> Any:
        """Its number is all that is asked for."""
        return types.SimpleNamespace(run_id=1)

    def push_messages(self, *_: Any, **__: Any) -> Any:
        """Not here: who sends waits for the answers."""
        raise NotImplementedError

    create_message = pull_messages = push_messages

    def get_node_ids(self) -> list[int]:
        """Of all nodes."""
        return self.nodes

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """The answers, in the order of the messages."""
        return [self.answer(copy.deepcopy(one)) for one in messages]

    def answer(self, message: Message) -> Message:
        """What the message's node says to it."""
        node = message.metadata.dst_node_id
        place = {"partition-id": self.nodes.index(node)}
        context = Context(1, node, place, self.states[node], self._config)
        try:
            return self.app(message, context)
        except Exception as error:
            return Message(
                Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message
            )
