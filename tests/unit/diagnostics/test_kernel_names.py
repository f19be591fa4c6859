"""Whose kernel it is and what it does, as its name tells."""

from __future__ import annotations

import pytest

from streamkit.diagnostics.recording import kernel_names  # no public name tells whose a kernel is

# what numba-cuda 0.30.4 calls outer.<locals>.add_one, compiled for two arrays
SYMBOL = (
    "_ZN8__main__5outer12_3clocals_3e7add_oneB2v1B72cw51cXTLSUwv1sDUaKthqaNgoKmjgOR3W3CwAkMXLaJtQYk"
    "OIgxJU0gCqOkELKEJAA_3d_3dE5ArrayIfLi1E1A7mutable7alignedE5ArrayIfLi1E1A7mutable7alignedE"
)
OPTIONS = "cw51cXTLSUwv1sDUaKthqaNgoKmjgOR3W3CwAkMXLaJtQYkOIgxJU0gCqOkELKEJAA_3d_3d"
NUMBA = f"__main__::outer::_3clocals_3e::add_one[abi:v1][abi:{OPTIONS}]"


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("at::native::vectorized_elementwise_kernel<4>", "torch"),
        ("(anonymous namespace)::elementwise_kernel_with_index<at::native::f>", "torch"),
        ("cupy_multiply__float32", "cupy"),
        ("cupy_fill", "cupy"),
        # those of cuBLAS, CUB, cuRAND and a user, which torch and CuPy launched on an H200
        ("cutlass::Kernel2<cutlass_80_tensorop_d884gemm_64x32_16x4_nn_align1>", None),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_execute_kernel__5x_cublas", None),
        ("cub::CUB_300102::detail::reduce::DeviceReduceSingleTileKernel<int>", None),
        ("generate_seed_pseudo<rng_config<curandStateXORWOW, 101> >", None),
        ("add_one_b5b6dbb2_cuda_kernel_forward", "warp"),
        (NUMBA, "numba"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "nccl"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float", "nccl"),
        ("ncclAllReduceRingLLKernel_sum_f32", "nccl"),
        ("my_ncclDevKernel_AllReduce", None),
        ("mine::f[abi:v160006]", None),
        ("mine::f[abi:v1][abi:cxx11]", None),
        ("my::at::native::kernel", None),
        ("my_cupy_kernel", None),
    ],
)
def test_which_library_a_name_tells(name, library):
    assert kernel_names.library_of_kernel(name) == library


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("cupy_fill", "cupy_fill"),
        ("_Z3fooi", "foo"),
        (SYMBOL, NUMBA),
        ("_ZN2at6native3barIfEEvi", "at::native::bar<float>"),
        ("_Znot a symbol", "_Znot a symbol"),
    ],
)
def test_symbols_are_read_without_types_of_result_and_parameters(symbol, name):
    if kernel_names._runtime() is None:
        pytest.skip("no C++ runtime here")
    assert kernel_names.readable(symbol) == name


def test_without_a_c_plus_plus_runtime_symbols_stay(monkeypatch):
    monkeypatch.setattr(kernel_names, "_runtime", lambda: None)
    assert kernel_names._demangled("_Z3fooi") == "_Z3fooi"


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "allreduce"),
        ("ncclSymDevKernel_AllGather_LL", "allgather"),
        ("ncclDevKernel_SendRecv", "sendrecv"),
        ("ncclAllReduceRingLLKernel_sum_f32", "ncclAllReduceRingLLKernel_sum_f32"),
        # as a model of transformers had them on an H200, shortened here
        ("std::enable_if<true, void>::type my::kernel<int>", "kernel<int>"),
        (f"at::native::gather<at::native::f<{50 * 'x'}> >", "gather<...>"),
    ],
)
def test_what_a_kernel_does(name, operation):
    assert kernel_names.operation(name, "nccl") == operation
