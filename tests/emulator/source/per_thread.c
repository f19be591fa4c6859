/* The second functions of entry points, for callers whose 0 is the per-thread default stream. */
#include "emulator.h"

#define OWN(stream) ((stream) ? (stream) : CU_STREAM_PER_THREAD)
#define PER_THREAD(name, parameters, arguments) \
    EXPORT CUresult name##_ptsz parameters { return name arguments; }

PER_THREAD(cuStreamGetPriority, (CUstream s, int *p), (OWN(s), p))
PER_THREAD(cuStreamGetFlags, (CUstream s, unsigned *f), (OWN(s), f))
PER_THREAD(cuStreamGetId, (CUstream s, unsigned long long *id), (OWN(s), id))
PER_THREAD(cuStreamGetDevice, (CUstream s, CUdevice *d), (OWN(s), d))
PER_THREAD(cuStreamGetCtx, (CUstream s, CUcontext *c), (OWN(s), c))
PER_THREAD(cuStreamGetCtx_v2, (CUstream s, CUcontext *c, CUgreenCtx *g), (OWN(s), c, g))
PER_THREAD(cuStreamQuery, (CUstream s), (OWN(s)))
PER_THREAD(cuStreamSynchronize, (CUstream s), (OWN(s)))
PER_THREAD(cuStreamWaitEvent, (CUstream s, CUevent e, unsigned f), (OWN(s), e, f))
PER_THREAD(cuStreamAddCallback, (CUstream s, CUstreamCallback c, void *d, unsigned f),
           (OWN(s), c, d, f))
PER_THREAD(cuLaunchHostFunc, (CUstream s, CUhostFn h, void *d), (OWN(s), h, d))
PER_THREAD(cuLaunchKernel,
           (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
            unsigned bz, unsigned m, CUstream s, void **p, void **e),
           (f, gx, gy, gz, bx, by, bz, m, OWN(s), p, e))
PER_THREAD(cuEventRecord, (CUevent e, CUstream s), (e, OWN(s)))
PER_THREAD(cuEventRecordWithFlags, (CUevent e, CUstream s, unsigned f), (e, OWN(s), f))
PER_THREAD(cuMemAllocAsync, (CUdeviceptr *p, size_t n, CUstream s), (p, n, OWN(s)))
PER_THREAD(cuMemAllocFromPoolAsync, (CUdeviceptr *p, size_t n, CUmemoryPool q, CUstream s),
           (p, n, q, OWN(s)))
PER_THREAD(cuMemFreeAsync, (CUdeviceptr p, CUstream s), (p, OWN(s)))
PER_THREAD(cuMemcpyAsync, (CUdeviceptr d, CUdeviceptr f, size_t n, CUstream s), (d, f, n, OWN(s)))
PER_THREAD(cuMemcpyHtoDAsync_v2, (CUdeviceptr d, const void *f, size_t n, CUstream s),
           (d, f, n, OWN(s)))
PER_THREAD(cuMemcpyDtoHAsync_v2, (void *d, CUdeviceptr f, size_t n, CUstream s), (d, f, n, OWN(s)))
PER_THREAD(cuMemcpyDtoDAsync_v2, (CUdeviceptr d, CUdeviceptr f, size_t n, CUstream s),
           (d, f, n, OWN(s)))
PER_THREAD(cuMemcpyPeerAsync,
           (CUdeviceptr d, CUcontext dc, CUdeviceptr f, CUcontext fc, size_t n, CUstream s),
           (d, dc, f, fc, n, OWN(s)))
PER_THREAD(cuStreamBeginCapture_v2, (CUstream s, CUstreamCaptureMode m), (OWN(s), m))
PER_THREAD(cuStreamEndCapture, (CUstream s, CUgraph *g), (OWN(s), g))
PER_THREAD(cuStreamIsCapturing, (CUstream s, CUstreamCaptureStatus *c), (OWN(s), c))
PER_THREAD(cuStreamGetCaptureInfo_v2,
           (CUstream s, CUstreamCaptureStatus *c, cuuint64_t *id, CUgraph *g,
            const CUgraphNode **d, size_t *n),
           (OWN(s), c, id, g, d, n))
PER_THREAD(cuStreamGetCaptureInfo_v3,
           (CUstream s, CUstreamCaptureStatus *c, cuuint64_t *id, CUgraph *g,
            const CUgraphNode **d, const CUgraphEdgeData **e, size_t *n),
           (OWN(s), c, id, g, d, e, n))
PER_THREAD(cuStreamUpdateCaptureDependencies,
           (CUstream s, CUgraphNode *d, size_t n, unsigned f), (OWN(s), d, n, f))
PER_THREAD(cuStreamUpdateCaptureDependencies_v2,
           (CUstream s, CUgraphNode *d, const CUgraphEdgeData *e, size_t n, unsigned f),
           (OWN(s), d, e, n, f))
PER_THREAD(cuGraphInstantiateWithParams,
           (CUgraphExec *e, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p), (e, g, p))
PER_THREAD(cuGraphUpload, (CUgraphExec e, CUstream s), (e, OWN(s)))
PER_THREAD(cuGraphLaunch, (CUgraphExec e, CUstream s), (e, OWN(s)))

#define PER_THREAD_VALUE(name, type)                                                         \
    PER_THREAD(name, (CUstream s, CUdeviceptr p, type v, unsigned f), (OWN(s), p, v, f))
PER_THREAD_VALUE(cuStreamWaitValue32_v2, cuuint32_t)
PER_THREAD_VALUE(cuStreamWaitValue64_v2, cuuint64_t)
PER_THREAD_VALUE(cuStreamWriteValue32_v2, cuuint32_t)
PER_THREAD_VALUE(cuStreamWriteValue64_v2, cuuint64_t)

#define PER_THREAD_FILL(bits, type)                                                              \
    PER_THREAD(cuMemsetD##bits##Async, (CUdeviceptr p, type v, size_t n, CUstream s),            \
               (p, v, n, OWN(s)))                                                                \
    PER_THREAD(cuMemsetD2D##bits##Async,                                                         \
               (CUdeviceptr p, size_t pitch, type v, size_t w, size_t h, CUstream s),            \
               (p, pitch, v, w, h, OWN(s)))
PER_THREAD_FILL(8, unsigned char)
PER_THREAD_FILL(16, unsigned short)
PER_THREAD_FILL(32, unsigned int)
