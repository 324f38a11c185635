"""Reading a stream of server-sent events (WHATWG HTML, section 9.2), whatever its chunking."""

from collections.abc import Iterator

_BOM = b"\xef\xbb\xbf"


class EventReader:
    """Collects bytes and gives the data of each complete event.

    All three line ends are understood; comments and other fields are passed over.
    """

    def __init__(self) -> None:
        """Begin a stream."""
        self._rest = b""
        self._data: list[bytes] = []
        self._first = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take more bytes; return the data of every event they complete."""
        return list(self._events(self._lines(chunk)))

    def _lines(self, chunk: bytes) -> list[bytes]:
        data = self._rest + chunk
        if self._first and len(data) >= len(_BOM):
            data = data.removeprefix(_BOM)
            self._first = False
        if data.endswith(b"\r"):
            # It may be the first half of a CRLF.
            held, data = b"\r", data[:-1]
        else:
            held = b""
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._rest = lines.pop() + held
        return lines

    def _events(self, lines: list[bytes]) -> Iterator[bytes]:
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif line == b"data":
                self._data.append(b"")
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data = []
