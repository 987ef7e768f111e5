// A driver that only writes down what it is asked. The prototypes are those of cuda.h: a definition
// that differs from them does not compile.
//
// BATCH is 0 for a driver without cuMemcpyBatchAsync, 1 for CUDA 12.8's, 2 for CUDA 13's.
#include <cuda.h>
#include <stddef.h>
#include <string.h>

#undef cuMemcpyBatchAsync

// What was called last, with which words; what the next call answers.
char called[64];
unsigned long long words[32];
int answer;

#define SAY(...)                                                                                    \
    do {                                                                                            \
        const unsigned long long said[] = {__VA_ARGS__};                                            \
        strcpy(called, __func__);                                                                   \
        memcpy(words, said, sizeof said);                                                           \
    } while (0)
#define WORD(X) (unsigned long long)(X)

static CUresult answered(void) {
    const int now = answer;
    answer = 0;
    return (CUresult)now;
}

CUresult cuGetErrorName(CUresult error, const char **name) {
    if (error == CUDA_ERROR_ILLEGAL_ADDRESS) *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
    else if (error == CUDA_ERROR_INVALID_VALUE) *name = "CUDA_ERROR_INVALID_VALUE";
    else if (error == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) *name = "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT";
    else if (error == CUDA_ERROR_NO_DEVICE) *name = "CUDA_ERROR_NO_DEVICE";
    else return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}
CUresult cuInit(unsigned int flags) { SAY(flags); return answered(); }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = 40 + ordinal; return answered(); }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    *value = attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM && device == 40;
    return answered();
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = (CUcontext)(0x1234500000000ull + device);
    return answered();
}
// Contexts that are pushed, and the mode of captures.
int depth, mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
CUresult cuCtxPushCurrent(CUcontext context) { ++depth; SAY(WORD(context)); return answered(); }
CUresult cuCtxPopCurrent(CUcontext *context) { --depth; *context = 0; return answered(); }
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *other) {
    const CUstreamCaptureMode before = (CUstreamCaptureMode)mode;
    mode = *other;
    *other = before;
    return answered();
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    *status = WORD(stream) == 9 ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    SAY(WORD(stream));
    return answered();
}
CUresult cuEventRecord(CUevent event, CUstream stream) { SAY(WORD(event), WORD(stream)); return answered(); }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    SAY(WORD(stream), WORD(event), flags);
    return answered();
}
CUresult cuStreamSynchronize(CUstream stream) { SAY(WORD(stream)); return answered(); }
CUresult cuCtxSynchronize(void) { SAY(0); return answered(); }
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    SAY(to, value, count, WORD(stream));
    memset((void *)to, value, count);
    return answered();
}
CUresult cuEventQuery(CUevent event) { SAY(WORD(event)); return answered(); }
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address) {
    if (address < 4096) return CUDA_ERROR_INVALID_VALUE;
    // Addresses below 2^40 are of device 0, those beyond of device 1; odd ones are the host's.
    if (attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *(CUmemorytype *)value = address % 2 ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    else if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) *(int *)value = address >> 40 ? 1 : 0;
    else return CUDA_ERROR_NOT_SUPPORTED;
    return answered();
}
CUresult cuMemHostRegister(void *address, size_t size, unsigned int flags) {
    SAY(WORD(address), size, flags, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    return answered();
}
CUresult cuMemHostUnregister(void *address) { SAY(WORD(address)); return answered(); }
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t count, CUstream stream) {
    SAY(to, from, count, WORD(stream));
    memcpy((void *)to, (const void *)from, count);
    return answered();
}
CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D *copy, CUstream stream) {
    SAY(WORD(stream), copy->srcXInBytes, copy->srcY, copy->dstXInBytes, copy->dstY,
        copy->srcMemoryType == CU_MEMORYTYPE_UNIFIED, copy->dstMemoryType == CU_MEMORYTYPE_UNIFIED,
        WORD(copy->srcHost), WORD(copy->dstHost), WORD(copy->srcArray), WORD(copy->dstArray));
    for (size_t row = 0; row < copy->Height; ++row)
        memcpy((void *)(copy->dstDevice + row * copy->dstPitch),
               (const void *)(copy->srcDevice + row * copy->srcPitch), copy->WidthInBytes);
    return answered();
}
CUresult cuLaunchKernel(CUfunction function, unsigned int x, unsigned int y, unsigned int z, unsigned int a,
                        unsigned int b, unsigned int c, unsigned int shared, CUstream stream, void **parameters,
                        void **extra) {
    SAY(WORD(function), x, y, z, a, b, c, shared, WORD(stream), WORD(extra));
    for (int i = 0; i < 9; ++i) words[10 + i] = *(const unsigned long long *)parameters[i];
    return answered();
}

#if BATCH
static CUresult batch(const char *name, CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                      CUmemcpyAttributes *attributes, size_t *first, size_t kinds, CUstream stream) {
    strcpy(called, name);
    const unsigned long long said[] = {WORD(stream),
                                       count,
                                       kinds,
                                       *first,
                                       attributes->srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
                                       attributes->flags == CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE,
                                       sizeof *attributes,
                                       offsetof(CUmemcpyAttributes, flags)};
    memcpy(words, said, sizeof said);
    for (size_t i = 0; i < count; ++i) memcpy((void *)to[i], (const void *)from[i], sizes[i]);
    return answered();
}
#endif
#if BATCH == 2
// As CUDA 13's cuda.h has it; the operations are those of 12.8's.
CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *what, unsigned long long flags,
                                 CUstream stream) {
    SAY(WORD(stream), count, flags, sizeof *what, what->src.type == CU_MEMCPY_OPERAND_TYPE_POINTER,
        what->dst.type == CU_MEMCPY_OPERAND_TYPE_POINTER, WORD(what->src.op.ptr.locHint.id),
        what->extent.depth, what->src.op.ptr.layerHeight, what->dst.op.ptr.layerHeight,
        what->srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
        what->flags == CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);
    for (size_t i = 0; i < count; ++i)
        for (size_t row = 0; row < what[i].extent.height; ++row)
            memcpy((void *)(what[i].dst.op.ptr.ptr + row * what[i].dst.op.ptr.rowLength),
                   (const void *)(what[i].src.op.ptr.ptr + row * what[i].src.op.ptr.rowLength),
                   what[i].extent.width);
    return answered();
}
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                               CUmemcpyAttributes *attributes, size_t *first, size_t kinds, CUstream stream) {
    return batch(__func__, to, from, sizes, count, attributes, first, kinds, stream);
}
#endif
#if BATCH && CUDA_VERSION < 13000
CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *sizes, size_t count,
                            CUmemcpyAttributes *attributes, size_t *first, size_t kinds, size_t *failed,
                            CUstream stream) {
    *failed = 0;
    return batch(__func__, to, from, sizes, count, attributes, first, kinds, stream);
}
#endif
