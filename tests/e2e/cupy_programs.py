"""CuPy programs, each compared with NumPy: `cupy_programs.py NAME...` or `all`.

On the soft GPU CuPy must compile to PTX (CUPY_COMPILE_WITH_PTX=1). Its CUB and Thrust, which sort
and reduce, bring PTX for later GPUs, which the soft GPU takes where there is none for it. What
needs one of NVIDIA's closed libraries (cuBLAS, cuFFT, cuSOLVER, cuRAND, whose kernels come as
machine code only) is in CLOSED, for a real GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import cupy as cp
import numpy as np

PROGRAMS: dict[str, Callable[[], None]] = {}
CLOSED: dict[str, Callable[[], None]] = {}


def program(function: Callable[[], None]) -> Callable[[], None]:
    PROGRAMS[function.__name__] = function
    return function


def closed(function: Callable[[], None]) -> Callable[[], None]:
    CLOSED[function.__name__] = function
    return function


def same(got: Any, expected: Any, tolerance: float = 0.0) -> None:
    """`got` (of the GPU) is `expected`: exactly, or within a relative tolerance."""
    here = cp.asnumpy(got)
    if here.dtype != np.asarray(expected).dtype or here.shape != np.shape(expected):
        raise AssertionError(f"{here.dtype}{here.shape} is not {np.asarray(expected).dtype}")
    if tolerance:
        np.testing.assert_allclose(here, expected, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(here, expected)


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    values = np.random.default_rng(7).integers(-1000, 1000, size=shape)
    return (values / 8).astype(dtype) if np.issubdtype(dtype, np.floating) else values.astype(dtype)


@program
def devices() -> None:
    """Arrays of every device there is, brought together on the first, and sent out again."""
    count = cp.cuda.runtime.getDeviceCount()
    parts = []
    for index in range(count):
        with cp.cuda.Device(index):
            parts.append(cp.arange(10000, dtype=cp.float32) * (index + 1))
    with cp.cuda.Device(0):
        total = cp.zeros(10000, cp.float32)
        for part in parts:
            total += part.copy()
    factor = count * (count + 1) // 2
    expected = np.arange(10000, dtype=np.float32) * factor
    same(total, expected)
    for index in range(count):
        with cp.cuda.Device(index):
            there = total.copy()
            assert there.device.id == index
            same(there + 1, expected + 1)


@program
def elementwise() -> None:
    x, y = numbers(3000), numbers(3000)[::-1].copy()
    a, b = cp.asarray(x), cp.asarray(y)
    same(a + b, x + y)
    same(a * b - a, x * y - x, 1e-6)
    same(cp.where(a > b, a, b), np.where(x > y, x, y))
    same(cp.sqrt(cp.abs(a)), np.sqrt(np.abs(x)), 1e-6)
    same(cp.exp(a / 500) + cp.sin(b), np.exp(x / 500) + np.sin(y), 1e-5)
    for dtype in (np.int8, np.uint16, np.int32, np.int64, np.float16, np.float64):
        v = numbers(500, dtype=dtype)
        same(cp.asarray(v) + cp.asarray(v), v + v)
    same(cp.asarray(x).astype(np.int32) // 7, x.astype(np.int32) // 7)
    same((a > 0) & (b < 3), (x > 0) & (y < 3))


@program
def broadcasting() -> None:
    x, y = numbers(40, 1), numbers(1, 33)
    same(cp.asarray(x) * cp.asarray(y), x * y)
    z = numbers(6, 7, 8)
    g = cp.asarray(z)
    same(g.transpose(2, 0, 1).copy(), z.transpose(2, 0, 1))
    same(g[::2, 1:5, ::-1] + 1, z[::2, 1:5, ::-1] + np.float32(1))
    same(cp.concatenate([g, g], axis=1), np.concatenate([z, z], axis=1))
    same(g.reshape(42, 8)[3:9], z.reshape(42, 8)[3:9])


@program
def reductions() -> None:
    x = numbers(50, 60, dtype=np.int32)
    a = cp.asarray(x)
    same(a.sum(), x.sum())
    same(a.sum(axis=0), x.sum(axis=0))
    same(a.max(axis=1), x.max(axis=1))
    same(a.argmin(axis=1), x.argmin(axis=1))
    same((a > 0).all(), (x > 0).all())
    same((a > 0).any(axis=0), (x > 0).any(axis=0))
    real = numbers(4000, dtype=np.float64)
    same(cp.asarray(real).mean(), real.mean(), 1e-12)
    same(cp.asarray(real).std(), real.std(), 1e-12)
    add = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = a", "0", "sum_of_squares")
    same(add(cp.asarray(real)), (real * real).sum(), 1e-12)


@program
def raw_kernel() -> None:
    kernel = cp.RawKernel(
        r"""
        extern "C" __global__ void saxpy(float *out, const float *x, const float *y, float a, int n)
        {
            int i = blockDim.x * blockIdx.x + threadIdx.x;
            if (i < n)
                out[i] = a * x[i] + y[i];
        }
        """,
        "saxpy",
    )
    x, y = numbers(1000), numbers(1000)
    out = cp.empty(1000, np.float32)
    kernel((8,), (128,), (out, cp.asarray(x), cp.asarray(y), np.float32(2), np.int32(1000)))
    same(out, np.float32(2) * x + y)
    assert kernel.max_threads_per_block >= 128
    assert kernel.num_regs >= 0


@program
def raw_module() -> None:
    module = cp.RawModule(
        code=r"""
        __constant__ int factors[4];
        template <typename T> __global__ void scale(T *values, int n)
        {
            extern __shared__ char raw[];
            T *tile = reinterpret_cast<T *>(raw);
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            tile[threadIdx.x] = i < n ? values[i] : T(0);
            __syncthreads();
            if (i < n)
                values[i] = tile[threadIdx.x] * T(factors[i % 4]);
        }
        """,
        options=("-std=c++17",),
        name_expressions=("scale<int>", "scale<double>"),
    )
    address = module.get_global("factors")
    cp.ndarray(4, np.int32, address)[:] = cp.asarray([2, 3, 5, 7], np.int32)
    for name, dtype in (("scale<int>", np.int32), ("scale<double>", np.float64)):
        x = numbers(300, dtype=dtype)
        a = cp.asarray(x)
        size = 128 * x.dtype.itemsize
        module.get_function(name)((3,), (128,), (a, np.int32(300)), shared_mem=size)
        same(a, x * np.resize(np.array([2, 3, 5, 7], dtype), 300))


@program
def elementwise_kernel() -> None:
    kernel = cp.ElementwiseKernel(
        "float32 x, raw float32 table", "float32 z", "z = x + table[i % 5]", "with_table"
    )
    x, table = numbers(777), numbers(5)
    same(kernel(cp.asarray(x), cp.asarray(table)), x + np.resize(table, 777))

    @cp.fuse()  # type: ignore[untyped-decorator, unused-ignore]
    def fused(p: Any, q: Any) -> Any:
        return (p - q) * (p + q)

    y = numbers(777)[::-1].copy()
    same(fused(cp.asarray(x), cp.asarray(y)), (x - y) * (x + y), 1e-6)


@program
def streams_and_events() -> None:
    x = numbers(2000)
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(4)]
    results: list[Any] = []
    start, stop = cp.cuda.Event(), cp.cuda.Event()
    start.record(streams[0])
    for k, stream in enumerate(streams):
        with stream:
            a = cp.asarray(x)
            for _ in range(5):
                a = a + k
            results.append(a)
    gathered = cp.cuda.Event(disable_timing=True)
    for stream in streams[1:]:
        gathered.record(stream)
        streams[0].wait_event(gathered)
    stop.record(streams[0])
    stop.synchronize()
    assert cp.cuda.get_elapsed_time(start, stop) >= 0
    assert stop.done and streams[0].done
    for k, a in enumerate(results):
        same(a, x + np.float32(5 * k))


@program
def pinned_memory() -> None:
    x = numbers(5000)
    memory = cp.cuda.alloc_pinned_memory(x.nbytes)
    pinned = np.frombuffer(memory, np.float32, x.size)
    pinned[...] = x
    stream = cp.cuda.Stream(non_blocking=True)
    a = cp.empty(x.shape, np.float32)
    a.set(pinned, stream=stream)
    with stream:
        a *= 2
    back = a.get(stream=stream, out=pinned)
    stream.synchronize()
    np.testing.assert_array_equal(back, 2 * x)


@program
def memory_pool() -> None:
    pool = cp.cuda.MemoryPool()
    with cp.cuda.using_allocator(pool.malloc):
        a = cp.arange(10_000, dtype=np.int32)
        assert pool.used_bytes() >= 40_000
        same(a[::-1].copy(), np.arange(10_000, dtype=np.int32)[::-1])
        del a
        assert pool.used_bytes() == 0
        assert pool.total_bytes() > 0
        pool.free_all_blocks()
        assert pool.total_bytes() == 0
    asynchronous = cp.cuda.MemoryAsyncPool()
    with cp.cuda.using_allocator(asynchronous.malloc):
        same(cp.ones(1000, np.float32) * 3, np.full(1000, 3, np.float32))
    free, total = cp.cuda.Device(0).mem_info
    assert 0 < free <= total


@program
def fancy_indexing() -> None:
    x = numbers(30, 40)
    a = cp.asarray(x)
    rows = np.array([3, 1, 29, 3])
    columns = np.array([0, 39, 7, 7])
    same(a[cp.asarray(rows)], x[rows])
    same(a[cp.asarray(rows), cp.asarray(columns)], x[rows, columns])
    a[cp.asarray(rows[:3]), cp.asarray(columns[:3])] = 5
    x[rows[:3], columns[:3]] = 5
    same(a, x)
    same(cp.take(a, cp.asarray(columns), axis=1), np.take(x, columns, axis=1))
    cp.add.at(a, (cp.asarray(rows), 2), 1)
    index: Any = (rows, 2)
    np.add.at(x, index, 1)
    same(a, x)


@program
def matmul_of_integers() -> None:
    """Integer products use CuPy's own kernel; floats would use cuBLAS."""
    x, y = numbers(33, 40, dtype=np.int32) % 100, numbers(40, 21, dtype=np.int32) % 100
    same(cp.asarray(x) @ cp.asarray(y), x @ y)


@program
def errors() -> None:
    try:
        cp.cuda.alloc(1 << 46)
    except cp.cuda.memory.OutOfMemoryError:
        pass
    else:
        raise AssertionError("64 TiB were granted")
    try:
        cp.RawKernel("this is no C++", "f").compile()
    except cp.cuda.compiler.CompileException:
        pass
    else:
        raise AssertionError("nonsense was compiled")
    same(cp.ones(10, np.int32).sum(), np.int64(10))


@program
def device_properties() -> None:
    device = cp.cuda.Device(0)
    properties = cp.cuda.runtime.getDeviceProperties(0)
    assert properties["warpSize"] == 32
    assert int(device.compute_capability) >= 70
    assert cp.cuda.runtime.getDeviceCount() >= 1
    assert cp.cuda.runtime.driverGetVersion() >= 12000


@program
def sorting() -> None:
    x = numbers(1000)
    same(cp.sort(cp.asarray(x)), np.sort(x))
    same(cp.argsort(cp.asarray(np.unique(x)[::-1].copy())), np.argsort(np.unique(x)[::-1]))
    same(cp.unique(cp.asarray(x)), np.unique(x))
    same(cp.cumsum(cp.asarray(x.astype(np.int64))), np.cumsum(x.astype(np.int64)))


@closed
def linear_algebra() -> None:
    x, y = numbers(64, 80), numbers(80, 48)
    same(cp.asarray(x) @ cp.asarray(y), x @ y, 1e-4)
    square = (x @ x.T + 1e5 * np.eye(64)).astype(np.float64)
    b = numbers(64, dtype=np.float64)
    same(cp.linalg.solve(cp.asarray(square), cp.asarray(b)), np.linalg.solve(square, b), 1e-9)
    same(cp.linalg.svd(cp.asarray(square))[1], np.linalg.svd(square)[1], 1e-9)


@closed
def fourier() -> None:
    x = numbers(1024, dtype=np.float64)
    same(cp.fft.fft(cp.asarray(x)), np.fft.fft(x), 1e-9)
    same(cp.fft.irfft(cp.fft.rfft(cp.asarray(x))), x, 1e-9)


@closed
def random_numbers() -> None:
    first = cp.asnumpy(cp.random.RandomState(3).rand(1000))
    again = cp.asnumpy(cp.random.RandomState(3).rand(1000))
    np.testing.assert_array_equal(first, again)
    assert 0.4 < first.mean() < 0.6


def main(arguments: list[str]) -> int:
    known = {**PROGRAMS, **CLOSED}
    names = arguments
    if arguments in (["all"], []):
        names = list(known if arguments else PROGRAMS)
    for name in names:
        if name not in known:
            print(f"no program '{name}'; there are: {', '.join(known)}", file=sys.stderr)
            return 2
        known[name]()
        cp.cuda.Device(0).synchronize()
        print(f"PASS {name}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
