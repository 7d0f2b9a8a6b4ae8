/* What the C preprocessor would leave of a cuda.h that has only these functions. */
typedef enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_LAUNCH_FAILED = 719 } CUresult;
CUresult cuEventCreate(CUevent *phEvent, unsigned int Flags);
CUresult cuEventRecord(CUevent hEvent, CUstream hStream);
CUresult cuEventRecord_ptsz(CUevent hEvent, CUstream hStream);
CUresult cuEventDestroy_v2(CUevent hEvent);
CUresult cuEventElapsedTime_v2(float *pMilliseconds, CUevent hStart, CUevent hEnd);
CUresult cuEventSynchronize(CUevent hEvent);
CUresult cuThingGetAttribute(int *pi, int attribute, CUdevice dev);
CUresult cuThingSetAsync(void *where, size_t bytes, CUstream hStream);
CUresult cuThingUse(unsigned int n, const int *values, const void *data, int *results,
                    const char *name, const CUmemLocation *location, size_t *size,
                    CUtensorMap *map, void *where, CUcontext ctx, unsigned char key[16]);
CUresult cuThingUse_ptds(unsigned int n, const int *values, const void *data, int *results,
                         const char *name, const CUmemLocation *location, size_t *size,
                         CUtensorMap *map, void *where, CUcontext ctx, unsigned char key[16]);
CUresult cuThingCopy(void *to, const void *from, size_t bytes);
CUresult cuThingGetVersion(int *version);
CUresult cuThingLoad(CUmodule *module);
CUresult cuThingLooked(int *how, unsigned long long lens, unsigned long long plate);
CUresult cuThingFind(size_t *bytes, CUmodule module);
CUresult cuThingHeld(int which, size_t *bytes);
CUresult cuThingUnload(CUmodule module);
CUresult cuThingAsk(int *pi, CUfunction function);
CUresult cuThingSet(CUfunction function, int value);
CUresult cuThingFill(CUdeviceptr where, size_t bytes);
CUresult cuThingAim(CUdeviceptr where, size_t bytes);
CUresult cuThingStart(CUfunction function, unsigned int flags, int level, unsigned int most,
                      unsigned int n, void *where, int reserved);
CUresult cuThingBegin(CUstream stream);
CUresult cuThingRecord(CUstream hStream);
CUresult cuThingJoin(CUstream hStream);
CUresult cuThingIsRecorded(CUstream hStream, int *yes);
CUresult cuThingRecorded(CUstream hStream);
CUresult cuThingMake(CUdeviceptr_v1 where, unsigned int bytes);
CUresult cuThingMade(CUdeviceptr_v1 *where);
CUresult cuThingMove(void *dst, void *src, size_t ByteCount, CUstream hStream);
CUresult cuThingInstantiate(CUgraphExec *exec, CUgraph graph);
CUresult cuThingRun(CUgraphExec exec, CUstream hStream);
CUresult cuThingEnd(CUgraph graph, CUstream hStream);
CUresult cuThingGetName(char *name, int *weight, int length, int ordinal, int spare);
CUresult cuThingGetContext(CUcontext ctx, int *number);
CUresult cuThingOpen(int *thing, unsigned int flags);
CUresult cuThingOpen_v1(int *thing, char *log, size_t size, int odd);
CUresult cuThingStop(CUmodule module);
CUresult cuThingPush(unsigned int n, unsigned int flags, int level, unsigned int most,
                     int reserved, CUstream hStream);
CUresult cuThingPull(unsigned int n);
CUresult cuThingNew(CUstream *phStream, unsigned int flags);
CUresult cuThingFound(unsigned long long *address, size_t *bytes);
CUresult cuThingPut(CUdeviceptr where, size_t bytes, CUstream hStream);
CUresult cuThingWait(CUstream hStream);
CUresult cuThingWaitAll(CUcontext ctx);
CUresult cuThingClose(CUlibrary library);
CUresult cuThingQuery(CUstream hStream, int attribute);
CUresult cuThingAllow(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *list, size_t count,
                      CUmemAllocationProp *prop);
CUresult cuThingWrite(uint64_t where, uint32_t bytes, const void *data);
CUresult cuThingRead(uint64_t where, uint32_t bytes, void *data);
CUresult cuThingFetch(uint64_t offset, size_t bytes, CUstream hStream);
CUresult cuThingMark(CUmodule *module, CUevent event, char *text);
