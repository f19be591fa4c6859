"""Warp: what StreamKit knows of it without importing it. Its adapter is in ``adapter``."""

from streamkit.protocols.libraries import Library, OtherName

LIBRARY = Library(
    "warp",
    label="Warp",
    adapter="_warp.adapter",
    module="warp",
    mark="get_stream",
    requirements={  # from 1.18 on the index has builds for CUDA 13
        12: '"warp-lang>=1.14,<1.18"',
        13: '"warp-lang>=1.14"',
    },
    on_macos='"warp-lang>=1.14"',
    distribution="warp-lang",
    oldest=(1, 14),
    newest=(1, 19),
    cuda=r"\+cu(\d\d)",  # a build from the index has no such label
    carries_cuda=True,
    has_current=True,
    frees_on_legacy=True,
    kernels=r"_cuda_kernel_(forward|backward)$",
    operation=r"^_*(\w+?)_[0-9a-f]{8}_cuda_kernel_(?:forward|backward)$",
    colour="#009E73",
    names=(
        OtherName("A stream", "wp.Stream(device)", "sk.new_stream(device)"),
        OtherName(
            "A stream from a number",
            "wp.Stream(device, cuda_stream=ptr)",
            'sk.from_handle(ptr).to("warp")',
            ", one object per queue",
        ),
        OtherName(
            "The current stream",
            "wp.get_stream(device)",
            'sk.current_stream("warp", device=device)',
            package="get_stream",
        ),
        OtherName(
            "The current stream",
            "with wp.ScopedStream(s):",
            "with sk.use(s, ordered=True):",
            "; without `ordered` it waits for nothing",
            package="ScopedStream",
        ),
        OtherName(
            "The current stream",
            "wp.set_stream(s)",
            "with sk.use(s):",
            ", a block, because it has an end",
            package="set_stream",
        ),
        OtherName(
            "Order", "s.wait_stream(t)", "s.wait(t)", stream="wait_stream", package="wait_stream"
        ),
        OtherName(
            "Order", "s.wait_event(e)", "s.wait(e)", stream="wait_event", package="wait_event"
        ),
        OtherName(
            "Order",
            "s.record_event(e)",
            "s.record(e)",
            stream="record_event",
            package="record_event",
        ),
        OtherName(
            "Waiting on the CPU",
            "wp.synchronize_stream(s)",
            "s.sync()",
            "; `await s` in a coroutine",
            package="synchronize_stream",
        ),
        OtherName(
            "Waiting on the CPU",
            "wp.synchronize()",
            "s.sync()",
            " for each stream that the CPU has to wait for",
            package="synchronize synchronize_device",
        ),
        OtherName(
            "Waiting on the CPU",
            "s.is_complete",
            "s.done",
            ", which raises on a CUDA error",
            stream="is_complete",
        ),
        OtherName(
            "Waiting on the CPU",
            "wp.synchronize_event(e)",
            "e.sync()",
            package="synchronize_event",
        ),
        OtherName("Waiting on the CPU", "e.is_complete", "e.done", event="is_complete"),
        OtherName(
            "Time",
            "wp.get_event_elapsed_time(a, b)",
            "b - a",
            package="get_event_elapsed_time",
        ),
        OtherName(
            "Graphs",
            "with wp.ScopedCapture() as c:",
            "with sk.capture() as g:",
            package="ScopedCapture capture_begin capture_end",
        ),
        OtherName("Graphs", "wp.capture_launch(c.graph)", "g.launch()", package="capture_launch"),
        OtherName(
            "The devices",
            "wp.is_cuda_available()",
            'sk.new_stream().device != "cpu"',
            ", though a program need not ask: without a GPU it gets a host stream",
            package="is_cuda_available",
        ),
        OtherName("The handle", "s.cuda_stream", "s.handle", stream="cuda_stream"),
        OtherName("The handle", "e.cuda_event", "e.handle", event="cuda_event"),
    ),
)
