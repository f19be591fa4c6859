"""What the nodes of a graph tell of the copies, fills and memory that were captured."""

from __future__ import annotations

from cuda.bindings import driver

from emulator.observations.probe import THREAD_LOCAL, code, ok, streams

BYTES = 256


def node_parameters():
    """The answers, with addresses as distances from the memory that the test has."""
    memory = int(ok(driver.cuMemAlloc(BYTES)))
    host = int(ok(driver.cuMemHostAlloc(BYTES, 0)))
    with streams(True) as raw:
        ok(driver.cuStreamBeginCapture(raw, THREAD_LOCAL))
        ok(driver.cuMemcpyDtoDAsync(memory, memory + 64, 24, raw))
        ok(driver.cuMemcpyDtoHAsync(host + 8, memory, 16, raw))
        ok(driver.cuMemsetD32Async(memory + 4, 7, 3, raw))
        ok(driver.cuMemsetD2D16Async(memory, 32, 5, 6, 2, raw))
        allocated = int(ok(driver.cuMemAllocAsync(48, raw)))
        ok(driver.cuMemFreeAsync(allocated, raw))
        graph = ok(driver.cuStreamEndCapture(raw))
    nodes, _ = ok(driver.cuGraphGetNodes(graph, 6))
    copied, to_host, filled, rows, gives, takes = nodes
    made = ok(driver.cuGraphMemAllocNodeGetParams(gives))
    seen = {
        "a copy": _copy(copied, memory, memory),
        "a copy to the host": _copy(to_host, host, memory),
        "a fill": _fill(filled, memory),
        "a fill of rows": _fill(rows, memory),
        "an allocation": [int(made.dptr) == allocated, int(made.bytesize)],
        "a free": int(ok(driver.cuGraphMemFreeNodeGetParams(takes))) == allocated,
        "of another kind": [
            code(driver.cuGraphMemcpyNodeGetParams(filled)),
            code(driver.cuGraphMemsetNodeGetParams(copied)),
        ],
        "the range of a pointer": [_range(memory + 9, memory), _range(host + 9, host)],
        "the range of another": code(driver.cuPointerGetAttribute(_START, 8)),
    }
    ok(driver.cuGraphDestroy(graph))
    ok(driver.cuMemFree(memory))
    ok(driver.cuMemFreeHost(host))
    return seen


def _copy(node, to, source):
    found = ok(driver.cuGraphMemcpyNodeGetParams(node))
    ends = []
    for side, start in (("src", source), ("dst", to)):
        is_host = int(getattr(found, f"{side}MemoryType")) == driver.CUmemorytype.CU_MEMORYTYPE_HOST
        address = int(getattr(found, f"{side}Host" if is_host else f"{side}Device"))
        ends.append([bool(is_host), address - start])
    return [ends, int(found.WidthInBytes), int(found.Height), int(found.Depth)]


def _fill(node, to):
    found = ok(driver.cuGraphMemsetNodeGetParams(node))
    pitch = int(found.pitch) if found.height > 1 else None
    return [int(found.dst) - to, int(found.elementSize), int(found.width), int(found.height), pitch]


_START = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
_SIZE = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_RANGE_SIZE


def _range(pointer, start):
    found = int(ok(driver.cuPointerGetAttribute(_START, pointer)))
    return [found - start, int(ok(driver.cuPointerGetAttribute(_SIZE, pointer))) >= BYTES]
