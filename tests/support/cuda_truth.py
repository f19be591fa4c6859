"""Random programs of driver calls, and by brute force what their calls order.

What orders is written down as a graph of everything that a queue or a thread does, in which each
knows all that must have ended before it: once by the edges that are sure, once by those too that
there may be. Nothing of this is shared with what it is a measure for.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

SIZE = 64
PARTS = ((0, 64), (0, 32), (32, 32), (16, 32))


class Order:
    """Everything that is done, with what must and what may have ended before it, as bits."""

    def __init__(self):
        self.surely, self.perhaps = [], []

    def add(self, sure, perhaps=()):
        sure, perhaps = {*sure} - {None}, {*perhaps} - {None}
        self.surely.append(self._before(self.surely, sure))
        self.perhaps.append(self._before(self.perhaps, sure | perhaps))
        return len(self.surely) - 1

    @staticmethod
    def _before(known, nodes):
        found = 0
        for node in nodes:
            found |= known[node] | 1 << node
        return found

    def certain(self, one, other):
        """Whether two things race: None if they are surely ordered, False if perhaps."""
        first, second = sorted((one, other))
        if self.surely[second] >> first & 1:
            return None
        return not self.perhaps[second] >> first & 1


@dataclass
class Queue:
    text: str
    context: int | None
    """None for a default stream, which is one of each context."""
    is_blocking: bool
    capture: int | None = None


@dataclass
class Memory:
    text: str
    uses: list[tuple[int, int, str, int, int]] = field(default_factory=list)
    """Of each use the node, the line, what it does, and the bytes."""


class Program:
    """One random program, as lines of code, with the races that it really has."""

    def __init__(self, random, *, length=24, has_graphs=True, has_others=True):
        self._random = random
        self.lines = []
        self._order = Order()
        self._threads = dict.fromkeys(range(3))
        self._last_call = None
        self._last = {}  # of each queue
        self._events = {}
        self._frees = []
        self._numbers = itertools.count()
        self._captures = {}  # the events that its graph records, and those that it waits for
        self._ready = [([], [])] if has_graphs else []
        self._opened = set()
        self._ended = []
        self.has_graphs, self.has_others = has_graphs, has_others
        self._queues = [Queue("1", None, is_blocking=True), Queue("2", None, is_blocking=True)]
        for number in range(6):
            self._queues.append(Queue(f"s[{number}]", number % 2, is_blocking=number < 3))
        self._memory = [Memory(f"m[{number}]") for number in range(2)]
        self._pinned, self._downloads = Memory("h"), []
        for _ in range(length):
            self._step()

    @property
    def text(self):
        return "\n".join(self.lines)

    # -- what is written down -----------------------------------------------------------------

    def _call(self, code, context, thread=None):
        """Write a line; return its number, its thread, and the node of the call."""
        thread = self._random.choice([*self._threads]) if thread is None else thread
        self.lines.append(f"    on({thread}, {context}, lambda: {code})")
        node = self._order.add([self._threads[thread]], [self._last_call])
        self._threads[thread] = self._last_call = node
        return len(self.lines), thread, node

    def _key(self, queue, context, thread):
        if queue.text == "1":
            return "1", context
        return ("2", context, thread) if queue.text == "2" else (queue.text, queue.context)

    def _context_of(self, key):
        return key[1]

    def _item(self, queue, context, thread, call, sure=()):
        """Let a queue do something; return its node."""
        key = self._key(queue, context, thread)
        before = [self._last.get(key), call, *sure, *self._of_legacy(queue, key)]
        self._last[key] = self._order.add(before)
        return self._last[key]

    def _perhaps_item(self, queue, context, thread, sure, perhaps):
        """Let a queue do something, or nothing but to come after what is sure."""
        key = self._key(queue, context, thread)
        perhaps = [*perhaps, *self._of_legacy(queue, key)]
        self._last[key] = self._order.add([self._last.get(key), *sure], perhaps)

    def _of_legacy(self, queue, key):
        """What a queue comes after because of the legacy stream."""
        own = self._context_of(key)
        if key[0] != "1":
            return [self._last.get(("1", own))] if queue.is_blocking else []
        return [
            node
            for other, node in self._last.items()
            if self._context_of(other) == own and self._is_blocking(other)
        ]

    def _is_blocking(self, key):
        found = next(one for one in [*self._queues, *self._ended] if one.text == key[0])
        return found.is_blocking

    # -- one step -----------------------------------------------------------------------------

    def _step(self):
        kinds = ["use"] * 8 + ["record", "wait"] * 4 + ["sync", "download"] * 2 + [
            "sync context", "sync event", "free", "allocate", "new stream"
        ]  # fmt: skip
        kinds += ["capture", "launch"] * 2 * self.has_graphs + ["foreign"] * self.has_others
        getattr(self, "_" + self._random.choice(kinds).replace(" ", "_"))()

    def _queue(self, *, captures=False):
        found = [one for one in self._queues if captures or one.capture is None]
        if any(one.capture is not None and one.is_blocking for one in self._queues):
            found = [one for one in found if one.text != "1"]  # it would end that capture
        queue = self._random.choice(found)
        context = self._random.randrange(2) if queue.context is None else queue.context
        return queue, context

    def _use(self):
        queue, context = self._queue(captures=True)
        target, source = (self._random.choice(self._memory) for _ in "ts")
        (first, size), (other, _) = (self._random.choice(PARTS) for _ in "ts")
        if self._random.random() < 0.6 or target is source:
            code = f"d.fill({queue.text}, {target.text} + {first}, {size})"
            uses = [(target, "write", first)]
        else:
            other = min(other, SIZE - size)
            code = f"d.copy({queue.text}, {target.text} + {first}, {source.text} + {other}, {size})"
            uses = [(target, "write", first), (source, "read", other)]
        line, thread, call = self._call(code, context)
        if queue.capture is not None:
            return
        node = self._item(queue, context, thread, call)
        for memory, mode, start in uses:
            memory.uses.append((node, line, mode, start, start + size))

    def _download(self):
        queue, context = self._queue()
        source, (first, size) = self._random.choice(self._memory), self._random.choice(PARTS)
        code = f"d.download({queue.text}, h + {first}, {source.text} + {first}, {size})"
        line, thread, call = self._call(code, context)
        node = self._item(queue, context, thread, call)
        self._pinned.uses.append((node, line, "write", first, first + size))
        source.uses.append((node, line, "read", first, first + size))
        self._downloads.append((node, line, call, first, first + size))

    def _event(self):
        return self._random.randrange(5)

    def _record(self):
        queue, context = self._queue(captures=True)
        event, is_external = self._event(), queue.capture is not None
        if event in self._opened:
            return
        how = ", external=True" if is_external else ""
        anywhere = self._random.randrange(2) if queue.context is not None else context
        _, thread, call = self._call(f"d.record({queue.text}, {event + 500}{how})", anywhere)
        if is_external:
            self._captures[queue.capture][0].append(event)
        else:
            self._events[event] = self._item(queue, anywhere, thread, call)

    def _wait(self):
        queue, context = self._queue(captures=True)
        event, is_external = self._event(), queue.capture is not None
        if event in self._opened and is_external:
            return
        how = ", external=True" if is_external else ""
        anywhere = self._random.randrange(2) if queue.context is not None else context
        everything = [*self._last.values()]
        _, thread, call = self._call(f"d.wait({queue.text}, {event + 500}{how})", anywhere)
        if is_external:
            self._captures[queue.capture][1].append(event)
            return
        perhaps = everything if event in self._opened else ()
        # an event that has come, or that has no record, gives the queue nothing to do
        self._perhaps_item(queue, anywhere, thread, [self._events.get(event)], [call, *perhaps])

    def _sync(self):
        queue, context = self._queue()
        _, thread, _ = self._call(f"d.sync({queue.text})", context)
        key = self._key(queue, context, thread)
        awaited = self._of_legacy(queue, key) if key[0] == "1" else []
        self._host_waits(thread, [self._last.get(key), *awaited])

    def _sync_context(self):
        context = self._random.randrange(2)
        _, thread, _ = self._call("d.sync_context()", context)
        found = [n for key, n in self._last.items() if self._context_of(key) == context]
        self._host_waits(thread, found)

    def _sync_event(self):
        event = self._event()
        perhaps = [*self._last.values()] if event in self._opened else ()
        _, thread, _ = self._call(f"d.sync_event({event + 500})", self._random.randrange(2))
        self._host_waits(thread, [self._events.get(event)], perhaps)

    def _host_waits(self, thread, sure, perhaps=()):
        node = self._order.add([self._threads[thread], *sure], perhaps)
        self._threads[thread] = self._last_call = node

    # -- memory -------------------------------------------------------------------------------

    def _free(self):
        memory = self._random.choice(self._memory)
        if self._random.random() < 0.3:
            context = 0  # that of the memory
            _, thread, call = self._call(f"d.free({memory.text})", context)
            found = [n for key, n in self._last.items() if self._context_of(key) == context]
            self._host_waits(thread, found)
        else:
            queue, context = self._queue()
            line, thread, call = self._call(f"d.free({memory.text}, {queue.text})", context)
            node = self._item(queue, context, thread, call)
            memory.uses.append((node, line, "write", 0, SIZE))
            self._frees.append(node)
        self._ended.append(memory)
        self._memory.remove(memory)
        self._new_memory()

    def _allocate(self):
        if len(self._memory) < 4:
            self._new_memory()

    def _new_memory(self):
        memory = Memory(f"m[{next(self._numbers) + 2}]")
        if self._random.random() < 0.5:
            queue, context = self._queue()
            code = f"m.append(d.allocate({SIZE}, {queue.text}))"
            _, thread, call = self._call(code, context)
            self._perhaps_item(queue, context, thread, [], [call, *self._frees])
        else:
            self._call(f"m.append(d.allocate({SIZE}))", 0)
        self._memory.append(memory)

    # -- streams, graphs and other processes --------------------------------------------------

    def _new_stream(self):
        """Another stream gets the handle of one that ends."""
        found = [one for one in self._queues if one.context is not None and one.capture is None]
        old = self._random.choice(found)
        self._queues.remove(old)
        count = sum(one.context is not None for one in [*self._queues, *self._ended_queues()]) + 1
        self._ended.append(old)
        context, nonblocking = self._random.randrange(2), self._random.random() < 0.5
        self._call(f"d.destroy_stream({old.text})", self._random.randrange(2))
        self._call(f"s.append(d.make_stream(nonblocking={nonblocking}))", context)
        self._queues.append(Queue(f"s[{count}]", context, is_blocking=not nonblocking))

    def _ended_queues(self):
        return [one for one in self._ended if isinstance(one, Queue)]

    def _capture(self):
        capturing = [one for one in self._queues if one.capture is not None]
        if capturing:
            queue = capturing[0]
            self._call(f"d.end({queue.text})", queue.context)
            self._ready.append(self._captures.pop(queue.capture))
            queue.capture = None
            return
        queue = self._random.choice([one for one in self._queues if one.context is not None])
        self._call(f"d.begin({queue.text})", queue.context)
        queue.capture = len(self.lines)
        self._captures[queue.capture] = [], []

    def _launch(self):
        queue, context = self._queue()
        records, waits = self._random.choice(self._ready)
        _, thread, call = self._call(f"d.launch_graph({queue.text})", context)
        awaited = [self._events.get(event) for event in waits]
        node = self._item(queue, context, thread, call, awaited)
        for event in records:
            self._events[event] = node

    def _foreign(self):
        """An event's handle becomes that of an event of another process."""
        event = self._event()
        if any(event in one for graph in self._ready for one in graph):
            return
        if any(event in one for graph in self._captures.values() for one in graph):
            return
        self._call(f"d.open_event({event + 500})", 0)
        self._events.pop(event, None)
        self._opened.add(event)

    # -- the truth ----------------------------------------------------------------------------

    def races(self):
        """Return whether each pair of lines with a race surely has one."""
        found = {}
        ended = (one for one in self._ended if isinstance(one, Memory))
        for memory in [self._pinned, *self._memory, *ended]:
            for one, other in itertools.combinations(memory.uses, 2):
                if one[2] == other[2] == "read" or one[1] == other[1]:
                    continue
                if one[4] <= other[3] or other[4] <= one[3]:
                    continue
                certain = self._order.certain(one[0], other[0])
                if certain is not None:
                    pair = one[1], other[1]
                    found[pair] = found.get(pair, False) or certain
        return found

    def unread(self):
        """Return the lines of the copies to the host for which it has waited in no way.

        It must have waited at the end, and before the bytes are copied again, unless these two
        copies race themselves.
        """
        order, last = self._order.perhaps, self._last_call
        known = 0 if last is None else order[last]
        found = {line for node, line, *_ in self._downloads if not known >> node & 1}
        for place, (node, line, _, start, stop) in enumerate(self._downloads):
            again = (
                one for one in self._downloads[place + 1 :] if start < one[4] and one[3] < stop
            )
            for later, _, call, *_ in again:
                if self._order.surely[later] >> node & 1 and not order[call] >> node & 1:
                    found.add(line)
                break
        return found
