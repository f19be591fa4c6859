"""What a graph consists of, once it is captured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamkit import _driver, _driver_graphs, errors

if TYPE_CHECKING:
    from streamkit.protocols import CapturedGraph


class DriverPart:
    """The driver's own part in a capture, where no library has to begin it."""

    _is_refused = False

    def __init__(self, stream: int, mode: str) -> None:
        self._stream = stream
        self._mode = mode

    def begin(self) -> None:
        """Begin it."""
        try:
            _driver_graphs.begin(self._stream, self._mode)
        except errors.DriverError:
            self._is_refused = True
            raise

    def end(self) -> DriverGraph:
        """End it and return its executable graph."""
        graph = DriverGraph()
        try:
            graph.graph = _driver_graphs.end(self._stream)
            with _driver.beside_captures():
                graph.executable = _driver_graphs.instantiate(graph.graph)
        except BaseException:
            with _driver.beside_captures():
                graph.close()
            raise
        return graph

    def abandon(self) -> None:
        """End it, in whatever state."""
        if not self._is_refused:  # else a capture on the stream is somebody else's
            _driver_graphs.discard(self._stream)


class DriverGraph:
    """A graph that the driver alone knows."""

    graph: int = 0
    executable: int = 0

    def launch(self, stream: Any) -> None:
        """Queue a run on a stream, given by its handle."""
        _driver_graphs.launch(self.executable, stream)

    def close(self) -> None:
        """Destroy it; after a failure, a second time does what is left."""
        # marked as gone before it is: an interrupt must not let it be destroyed twice
        executable, self.executable = self.executable, 0
        graph, self.graph = self.graph, 0
        try:
            if executable:
                _driver_graphs.destroy_executable(executable)
                executable = 0
            if graph:
                _driver_graphs.destroy(graph)
        except errors.DriverError:
            self.executable, self.graph = executable, graph
            raise


class Parts:
    """An executable graph, and what has to live as long."""

    def __init__(
        self, executable: CapturedGraph, library: str | None, held: list[Any], context: int
    ) -> None:
        self.executable = executable
        self.library = library  # whose streams ``launch`` takes; None for handles
        self.held = held
        self.context = context

    def close(self) -> None:
        """Destroy the graph, then let go of what it used."""
        self.executable.close()
        self.held = []
