"""Where the emulated driver differs from hardware on purpose: section, observation, reason.

An observation may be a pattern. One that no longer differs fails the test.
"""

from __future__ import annotations

FEWER = "earlier callers, and those whose 0 is per-thread, have no function of their own here"

ACCEPTED = [
    (
        "host_functions",
        "inside one, *",
        "CUDA forbids every call; a real driver notices only some, the emulated one all",
    ),
    (
        "implicit_order",
        "query of blocking after legacy",
        "a lone record behind the legacy stream leaves a real stream idle; here it is work of it",
    ),
    ("implicit_order", "query of per-thread after legacy", "the same"),
    (
        "forked_child",
        "cu*",
        "a child that calls a real driver gets no answer; here it is told, so that a test sees it",
    ),
    ("forked_child", "query", "the same"),
    ("forked_child", "create", "the same"),
    (
        "pool_order",
        "the same queue gets it again",
        "memory here is new each time, so that the use of what was freed shows",
    ),
    *(
        ("entry_points", names, FEWER)
        for names in (
            "cuArray*Create",
            "cuArray3DGetDescriptor",
            "cuCtxCreate",
            "cuCtxDestroy",
            "cuCtxP*Current",
            "cuDeviceTotalMem",
            "cuEventDestroy",
            "cuGraphAdd*",
            "cuGraphExecUpdate",
            "cuGraphInstantiate",
            "cuGraphKernelNodeGetParams",
            "cuGraphics*",
            "cuLaunchKernel*",
            "cuMemAlloc",
            "cuMemAllocHost",
            "cuMemFree",
            "cuMemGet*",
            "cuMemHostGetDevicePointer",
            "cuMemcpy*",
            "cuMemset*",
            "cuModuleGetGlobal",
            "cuStreamAttachMemAsync",
            "cuStreamBeginCapture*",
            "cuStream*Attribute*",
            "cuStreamDestroy",
            "cuStreamGetCaptureInfo",
        )
    ),
]
