"""CuPy: what StreamKit knows of it without importing it. Its adapter is in ``adapter``."""

from streamkit.protocols.libraries import Library, OtherName

LIBRARY = Library(
    "cupy",
    label="CuPy",
    adapter="_cupy.adapter",
    module="cupy",
    mark="ndarray",
    requirements={12: '"cupy-cuda12x>=14.0"', 13: '"cupy-cuda13x>=14.0"'},
    distribution="cupy",
    variants=r"cupy(-(cuda|rocm).*)?",
    oldest=(14, 0),
    newest=(14, 2),
    cuda=r"^cupy-cuda(\d\d)",  # from source or from conda it is called cupy: it has to be asked
    compiles_with="nvrtc",
    switch="CUPY_CUDA_PER_THREAD_DEFAULT_STREAM",
    has_current=True,
    kernels=r"^cupy_",
    operation=r"^cupy_(\w+?)(?:__|$)",
    colour="#0072B2",
    names=(
        OtherName(
            "A stream", "cupy.cuda.Stream(non_blocking=True)", "sk.new_stream(nonblocking=True)"
        ),
        OtherName(
            "A stream from a number",
            "`cupy.cuda.ExternalStream(ptr)`, which CuPy deprecates",
            "sk.from_handle(ptr, owner=...)",
            package="ExternalStream",
        ),
        OtherName(
            "A stream of another library",
            "cupy.cuda.Stream.from_external(obj)",
            "sk.wrap(obj)",
            ', `sk.wrap(obj).to("cupy")`',
        ),
        OtherName(
            "The current stream",
            "cupy.cuda.get_current_stream()",
            'sk.current_stream("cupy")',
            package="get_current_stream",
        ),
        OtherName(
            "The current stream", "with s:", "with s:", ", which moves the other libraries too"
        ),
        OtherName(
            "The current stream",
            "s.use()",
            "with s:",
            ", a block, because it has an end",
            stream="use",
        ),
        OtherName("The current stream", "cupy.cuda.Stream.null", "sk.default_stream()"),
        OtherName("The current stream", "cupy.cuda.Stream.ptds", "sk.per_thread_stream()"),
        OtherName("Order", "s.wait_event(e)", "s.wait(e)", stream="wait_event"),
        OtherName("Order", "s.record(e)", "s.record(e)"),
        OtherName(
            "Waiting on the CPU",
            "s.synchronize()",
            "s.sync()",
            "; `await s` in a coroutine",
            stream="synchronize",
        ),
        OtherName("Waiting on the CPU", "s.done", "s.done", ", which raises on a CUDA error"),
        OtherName("Waiting on the CPU", "e.synchronize()", "e.sync()", event="synchronize"),
        OtherName("Waiting on the CPU", "s.add_callback(f)", "s.then(f)", stream="add_callback"),
        OtherName(
            "Waiting on the CPU", "s.launch_host_func(f)", "s.then(f)", stream="launch_host_func"
        ),
        OtherName("Time", "cupy.cuda.get_elapsed_time(a, b)", "b - a", package="get_elapsed_time"),
        OtherName(
            "Memory",
            "cupy.from_dlpack(x)",
            "cupy.from_dlpack(x)",
            " in a scope: [exchange arrays](arrays.md)",
        ),
        OtherName(
            "Graphs", "s.begin_capture()", "with sk.capture(s) as g:", stream="begin_capture"
        ),
        OtherName("Graphs", "s.end_capture()", "with sk.capture(s) as g:", stream="end_capture"),
        OtherName("The handle", "s.ptr", "s.handle", stream="ptr"),
        OtherName("The handle", "e.ptr", "e.handle", event="ptr"),
        OtherName("The flags", "s.is_non_blocking", "s.is_nonblocking", stream="is_non_blocking"),
    ),
)
