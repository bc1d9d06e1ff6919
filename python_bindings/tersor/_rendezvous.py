"""A key-value store at rank 0 for ranks with a shared secret: the rendezvous of TensorFlow's ranks.

A connection begins with 32 random bytes from each end. Both ends derive a key for each direction
from the secret and all 64 bytes. A message is a length (4 bytes), a JSON text, and an HMAC-SHA256
over the message's number and the text. The caller proves first: rank 0 answers authentic messages
alone. Messages are authenticated, not encrypted.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import threading
import time
from typing import Any

from tersor._core import InvalidArgument, TransportError

_NONCE_BYTES = _MAC_BYTES = 32
_LENGTH_BYTES = 4
_MOST_REQUEST_BYTES = 1 << 16
_MOST_ANSWER_BYTES = 1 << 26  # a table of 65,536 ranks has a quarter of these
_MOST_STRANGERS = 128  # unproven callers
_PROVEN_WITHIN = 10.0  # seconds
_PAUSE = 0.02  # seconds between two looks
_REFUSED = bytes(_LENGTH_BYTES)  # in place of an answer: the caller has another secret


def _key_of(secret: str) -> bytes:
    """Stretches the secret: guessing a phrase is slow."""
    return hashlib.scrypt(secret.encode(), salt=b"tersor rendezvous", n=1 << 14, r=8, p=1)


class _Messages:
    """The messages of one connection, in both directions."""

    def __init__(self, key: bytes, nonces: bytes, *, caller: bool) -> None:
        made = [hmac.digest(key, end + nonces, "sha256") for end in (b"caller", b"rank 0")]
        self._sends, self._receives = made if caller else reversed(made)
        self._sent = self._received = 0

    def sealed(self, message: Any) -> bytes:
        text = json.dumps(message).encode()
        self._sent += 1
        mac = hmac.digest(self._sends, self._sent.to_bytes(8, "big") + text, "sha256")
        return len(text).to_bytes(_LENGTH_BYTES, "big") + text + mac

    def opened(self, text: bytes, mac: bytes) -> Any:
        """Raises ValueError if the text is not the next text of the other end."""
        self._received += 1
        number = self._received.to_bytes(8, "big")
        if not hmac.compare_digest(mac, hmac.digest(self._receives, number + text, "sha256")):
            raise ValueError("the message is not authentic")
        return json.loads(text)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class Server:
    """Rank 0's end. Listens at the given address alone. Raises TransportError if it cannot."""

    def __init__(self, address: str, secret: str) -> None:
        self._key = _key_of(secret)
        self._words: dict[str, str] = {}
        self._strangers: list[asyncio.Task[Any]] = []  # the oldest first
        self._loop = asyncio.new_event_loop()
        host, port = _split(address)
        try:
            self._server = self._loop.run_until_complete(
                asyncio.start_server(self._serve, host, port)
            )
        except OSError as error:
            self._loop.close()
            raise TransportError(f"rank 0 cannot listen at {address}: {error}") from None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def set(self, key: str, value: str) -> None:
        self._words[key] = value

    def get(self, key: str, seconds: float) -> str | None:
        until = time.monotonic() + seconds
        while key not in self._words and time.monotonic() < until:
            time.sleep(_PAUSE)
        return self._words.get(key)

    def close(self) -> None:
        """Ends all connections."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError, EOFError, ValueError, TypeError, asyncio.TimeoutError, asyncio.CancelledError
        ):
            stranger = asyncio.create_task(self._first(reader, writer))
            self._strangers.append(stranger)
            if len(self._strangers) > _MOST_STRANGERS:
                self._strangers[0].cancel()
            try:
                messages, request = await asyncio.wait_for(stranger, _PROVEN_WITHIN)
            finally:
                self._strangers.remove(stranger)
            while True:
                writer.write(messages.sealed(await self._answer(*request)))
                await writer.drain()
                request = await _read(reader, messages)
        writer.close()

    async def _first(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[_Messages, Any]:
        """The first request, which proves that the caller knows the secret."""
        own = secrets.token_bytes(_NONCE_BYTES)
        writer.write(own)
        nonces = await reader.readexactly(_NONCE_BYTES) + own
        messages = _Messages(self._key, nonces, caller=False)
        try:
            return messages, await _read(reader, messages)
        except ValueError:
            writer.write(_REFUSED)
            raise

    async def _answer(self, key: str, value: str | None, seconds: float) -> str | None:
        """Sets a value, or waits for one."""
        if value is not None:
            self._words[key] = value
        until = time.monotonic() + seconds
        while key not in self._words and time.monotonic() < until:
            await asyncio.sleep(_PAUSE)
        return self._words.get(key)


async def _read(reader: asyncio.StreamReader, messages: _Messages) -> Any:
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    if length > _MOST_REQUEST_BYTES:
        raise ValueError("the message is too long")
    return messages.opened(await reader.readexactly(length), await reader.readexactly(_MAC_BYTES))


class Client:
    """The end of another rank. Raises TransportError if rank 0 is not there within ``timeout``
    seconds, and InvalidArgument if rank 0 has another secret.
    """

    def __init__(self, address: str, secret: str, timeout: float) -> None:
        self._address, self._key = address, _key_of(secret)
        until = time.monotonic() + timeout
        while True:
            try:
                return self._connect()
            except (OSError, EOFError) as error:
                if time.monotonic() >= until:
                    raise TransportError(
                        f"rank 0 is not to be reached at {address}: {error}"
                    ) from None
            time.sleep(5 * _PAUSE)

    def set(self, key: str, value: str) -> None:
        self._request(key, value, 0.0)

    def get(self, key: str, seconds: float) -> str | None:
        return self._request(key, None, max(seconds, 0.0))

    def close(self) -> None:
        self._socket.close()

    def _connect(self) -> None:
        self._socket = socket.create_connection(_split(self._address), timeout=_PROVEN_WITHIN)
        with contextlib.ExitStack() as after_an_error:
            after_an_error.callback(self.close)
            own = secrets.token_bytes(_NONCE_BYTES)
            self._socket.sendall(own)
            nonces = own + self._exactly(_NONCE_BYTES)
            self._messages = _Messages(self._key, nonces, caller=True)
            self._ask("", None, 0.0)
            after_an_error.pop_all()

    def _request(self, key: str, value: str | None, seconds: float) -> str | None:
        try:
            found: str | None = self._ask(key, value, seconds)
        except (OSError, EOFError) as error:
            raise TransportError(f"rank 0 at {self._address}: {error}") from None
        return found

    def _ask(self, key: str, value: str | None, seconds: float) -> Any:
        self._socket.settimeout(seconds + _PROVEN_WITHIN)
        self._socket.sendall(self._messages.sealed([key, value, seconds]))
        length = self._exactly(_LENGTH_BYTES)
        if length == _REFUSED:
            raise InvalidArgument("rank 0 knows another TERSOR_SECRET")
        try:
            if (count := int.from_bytes(length, "big")) > _MOST_ANSWER_BYTES:
                raise ValueError("the message is too long")
            return self._messages.opened(self._exactly(count), self._exactly(_MAC_BYTES))
        except ValueError as error:
            raise TransportError(
                f"{error}: another program answers at {self._address}, or somebody changes bytes "
                "on their way from rank 0"
            ) from None

    def _exactly(self, count: int) -> bytes:
        """Takes memory as bytes arrive, whatever length a message claims."""
        received = bytearray()
        while len(received) < count:
            some = self._socket.recv(min(count - len(received), 1 << 16))
            if not some:
                raise EOFError("the connection was closed")
            received += some
        return bytes(received)
