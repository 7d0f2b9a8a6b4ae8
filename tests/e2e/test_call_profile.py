"""What frameworks ask of the driver: implemented, and (test_programs.py) called by a program here.

The list is what PyTorch (training, inference, graphs, compile, cuSOLVER, cuFFT, cuSPARSE,
pinned memory, events), CuPy, JAX and Numba were seen to call on a real GPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "proto"))

from gpgen import spec_load  # noqa: E402

_NAMES = """
cuCtxGetApiVersion cuCtxGetCurrent cuCtxGetDevice cuCtxGetDevice_v2 cuCtxGetLimit
cuCtxGetStreamPriorityRange cuCtxPopCurrent_v2 cuCtxPushCurrent_v2 cuCtxSetCurrent cuCtxSynchronize
cuCtxSynchronize_v2 cuDeviceGet cuDeviceGetAttribute cuDeviceGetCount cuDeviceGetMemPool
cuDeviceGetName cuDeviceGetPCIBusId cuDeviceGetUuid cuDeviceGetUuid_v2 cuDevicePrimaryCtxGetState
cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxRetain cuDeviceTotalMem_v2
cuDriverGetVersion cuEventCreate cuEventDestroy_v2 cuEventElapsedTime_v2 cuEventQuery cuEventRecord
cuEventRecordWithFlags cuEventSynchronize cuFuncGetAttribute cuFuncSetAttribute
cuFuncSetCacheConfig cuGetErrorString cuGraphDestroy cuGraphExecDestroy cuGraphGetNodes
cuGraphInstantiateWithFlags cuGraphLaunch cuInit cuKernelGetAttribute cuKernelGetFunction
cuKernelSetAttribute cuLaunchHostFunc cuLaunchKernel cuLaunchKernelEx cuLibraryGetGlobal
cuLibraryGetKernel cuLibraryLoadData cuLibraryUnload cuMemAddressFree cuMemAddressReserve
cuMemAllocAsync cuMemAllocFromPoolAsync cuMemAllocManaged cuMemAlloc_v2 cuMemCreate cuMemFreeAsync
cuMemFreeHost cuMemFree_v2 cuMemGetAllocationGranularity cuMemGetInfo_v2 cuMemHostAlloc
cuMemHostGetDevicePointer_v2 cuMemMap cuMemPoolGetAttribute cuMemPoolSetAttribute cuMemRelease
cuMemSetAccess cuMemUnmap cuMemcpyDtoDAsync_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoH_v2
cuMemcpyHtoDAsync_v2 cuMemcpyHtoD_v2 cuMemsetD32Async cuMemsetD8Async cuModuleGetFunction
cuModuleGetGlobal_v2 cuModuleGetLoadingMode cuModuleLoad cuModuleLoadData cuModuleUnload
cuOccupancyAvailableDynamicSMemPerBlock cuOccupancyMaxActiveBlocksPerMultiprocessor
cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuOccupancyMaxActiveClusters
cuPointerGetAttribute cuPointerGetAttributes cuStreamBeginCapture_v2 cuStreamCreate
cuStreamCreateWithPriority cuStreamDestroy_v2 cuStreamEndCapture cuStreamGetCaptureInfo_v3
cuStreamGetPriority cuStreamIsCapturing cuStreamQuery cuStreamSynchronize cuStreamWaitEvent
cuTensorMapEncodeTiled cuThreadExchangeStreamCaptureMode
"""
CALLED_BY_FRAMEWORKS = _NAMES.split()

# Name -> why not. An entry whose function works fails the run, so that it is removed.
NOT_YET: dict[str, str] = {}


def names() -> list[object]:
    return [
        pytest.param(name, marks=pytest.mark.xfail(reason=NOT_YET[name], strict=True))
        if name in NOT_YET
        else name
        for name in CALLED_BY_FRAMEWORKS
    ]


@pytest.fixture(scope="module")
def modes() -> dict[str, str]:
    return {f.name: f.mode for f in spec_load.load(ROOT / "proto" / "spec").cuda}


def test_the_list_is_whole() -> None:
    assert len(CALLED_BY_FRAMEWORKS) == len(set(CALLED_BY_FRAMEWORKS)) == 104
    assert set(NOT_YET) <= set(CALLED_BY_FRAMEWORKS)


@pytest.mark.parametrize("name", names())
def test_it_is_implemented(name: str, modes: dict[str, str]) -> None:
    assert name in modes, "the spec does not name it"
    assert modes[name] != "refuse"
