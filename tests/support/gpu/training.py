"""A training step of torch, with a CuPy kernel and a Warp kernel in its graph of autograd."""

from __future__ import annotations

from support.gpu.warp_kernel import square
from support.libraries import need

torch, cupy, warp = need("torch"), need("cupy"), need("warp")
SIZE = 32
CUBE = """
extern "C" __global__ void cube(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * x[i] * x[i];
}
extern "C" __global__ void slope(const float* x, const float* g, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 3 * x[i] * x[i] * g[i];
}
"""
module = cupy.RawModule(code=CUBE)
OPTIMIZERS = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=1e-3),
    "SGD with momentum": lambda weights: torch.optim.SGD(weights, lr=1e-3, momentum=0.9),
    "fused SGD": lambda weights: torch.optim.SGD(weights, lr=1e-3, fused=True),
    "capturable Adam": lambda weights: torch.optim.Adam(weights, lr=1e-3, capturable=True),
    "fused Adam": lambda weights: torch.optim.Adam(weights, lr=1e-3, fused=True, capturable=True),
}


def _run(kernel, *arrays):
    count = arrays[0].size
    module.get_function(kernel)((-(-count // 128),), (128,), (*arrays, cupy.int32(count)))


class Cube(torch.autograd.Function):
    """By CuPy, with nothing that carries the stream over to another thread."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        y = torch.empty_like(x)
        _run("cube", cupy.asarray(x.detach()), cupy.asarray(y))
        return y

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        y = torch.empty_like(x)
        # by DLPack: it is Warp's, and CUDA does not know the device of what a graph allocates yet
        gradient = cupy.from_dlpack(gradient.contiguous())
        _run("slope", cupy.asarray(x.detach()), gradient, cupy.asarray(y))
        return y


class Square(torch.autograd.Function):
    """By Warp, with its tape."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = warp.from_torch(x.detach().contiguous(), requires_grad=True)
        ctx.y = warp.zeros_like(ctx.x, requires_grad=True)
        ctx.tape = warp.Tape()
        with ctx.tape:
            warp.launch(square, dim=ctx.x.shape, inputs=[ctx.x], outputs=[ctx.y], device="cuda:0")
        return warp.to_torch(ctx.y).detach()

    @staticmethod
    def backward(ctx, gradient):
        ctx.tape.backward(grads={ctx.y: warp.from_torch(gradient.contiguous())})
        return warp.to_torch(ctx.x.grad)


class Training:
    """A model and its optimizer, always begun with the same weights."""

    def __init__(self, optimizer, *, mixed):
        torch.manual_seed(3)
        layers = [torch.nn.Linear(SIZE, SIZE), torch.nn.Tanh(), torch.nn.Linear(SIZE, SIZE)]
        self.model = torch.nn.Sequential(*layers).cuda()
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self._mixed = mixed

    def step(self, x, target):
        self.optimizer.zero_grad(set_to_none=True)
        y = self.model(x)
        if self._mixed:
            y = Square.apply(Cube.apply(y))
        loss = (y - target).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def weights(self):
        return [weight.detach().clone() for weight in self.model.parameters()]


def batches(count):
    """Arguments of so many steps, in the same two arrays each time."""
    torch.manual_seed(4)
    data = torch.randn(count, 2, 8, SIZE, device="cuda")
    x, target = torch.empty_like(data[0, 0]), torch.empty_like(data[0, 1])
    for new_x, new_target in data:
        x.copy_(new_x)
        target.copy_(new_target)
        yield x, target
