/* SPDX-License-Identifier: Apache-2.0
 *
 * The CUDA driver, opened when it is first needed.
 *
 * No CUDA header and no link-time symbol: libcuda.so.1 comes with the driver, so a machine without a GPU does
 * not have it, and this extension must be importable there.  Types and numbers are those of the driver API,
 * which keeps them: CUDA 11.8's is the oldest that this project runs on.
 */
#ifndef FD_POSTPROC_DRIVER_H
#define FD_POSTPROC_DRIVER_H

#include "cuda/glibc.h"

#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

typedef int fdv_result;             /* CUresult; 0: success */
typedef int fdv_device;             /* CUdevice */
typedef struct fdv_context_ *fdv_context;
typedef struct fdv_module_ *fdv_module;
typedef struct fdv_function_ *fdv_function;
typedef struct fdv_stream_ *fdv_stream; /* NULL: the legacy default stream */
typedef struct fdv_event_ *fdv_event;
typedef uint64_t fdv_address;       /* CUdeviceptr */

enum {
    FDV_OLDEST_DRIVER = 11080,      /* CUDA 11.8 (driver 520): the first that reads PTX 7.8 */
    FDV_OLDEST_MAJOR = 7,           /* compute capability 7.0, the PTX's target */

    FDV_OUT_OF_MEMORY = 2, FDV_NOT_INITIALIZED = 3, FDV_NO_DEVICE = 100, FDV_NO_IMAGE = 209,
    FDV_CAPTURE_UNSUPPORTED = 900, FDV_CAPTURED_EVENT = 907, /* the first and the last error of captures */
    FDV_CAPTURE_RELAXED = 2,
    FDV_HOST_PORTABLE = 1, FDV_HOST_MAPPED = 2,
    FDV_EVENT_BLOCKING = 1, FDV_EVENT_NO_TIMING = 2,
    FDV_CAPABILITY_MAJOR = 75, FDV_CAPABILITY_MINOR = 76,
    FDV_POINTER_ORDINAL = 9,        /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */
    FDV_FUNCTION_REGISTERS = 4,     /* CU_FUNC_ATTRIBUTE_NUM_REGS */
};

#define FDV_FUNCTIONS(X) \
    X(Init, "cuInit", (unsigned flags)) \
    X(DriverGetVersion, "cuDriverGetVersion", (int *version)) \
    X(GetErrorName, "cuGetErrorName", (fdv_result error, const char **name)) \
    X(GetErrorString, "cuGetErrorString", (fdv_result error, const char **text)) \
    X(DeviceGetCount, "cuDeviceGetCount", (int *count)) \
    X(DeviceGet, "cuDeviceGet", (fdv_device *device, int ordinal)) \
    X(DeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int attribute, fdv_device device)) \
    X(PrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (fdv_context *context, fdv_device device)) \
    X(PrimaryCtxGetState, "cuDevicePrimaryCtxGetState", (fdv_device device, unsigned *flags, int *active)) \
    X(CtxGetCurrent, "cuCtxGetCurrent", (fdv_context *context)) \
    X(CtxSetCurrent, "cuCtxSetCurrent", (fdv_context context)) \
    X(CtxPushCurrent, "cuCtxPushCurrent_v2", (fdv_context context)) \
    X(CtxPopCurrent, "cuCtxPopCurrent_v2", (fdv_context *context)) \
    X(ModuleLoadData, "cuModuleLoadData", (fdv_module *module, const void *image)) \
    X(ModuleGetFunction, "cuModuleGetFunction", (fdv_function *function, fdv_module module, const char *name)) \
    X(FuncGetAttribute, "cuFuncGetAttribute", (int *value, int attribute, fdv_function function)) \
    X(ThreadExchangeCaptureMode, "cuThreadExchangeStreamCaptureMode", (int *mode)) \
    X(MemHostAlloc, "cuMemHostAlloc", (void **memory, size_t size, unsigned flags)) \
    X(MemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", \
      (fdv_address *address, void *memory, unsigned flags)) \
    X(MemFreeHost, "cuMemFreeHost", (void *memory)) \
    X(PointerGetAttribute, "cuPointerGetAttribute", (void *value, int attribute, fdv_address address)) \
    X(EventCreate, "cuEventCreate", (fdv_event *event, unsigned flags)) \
    X(EventRecord, "cuEventRecord", (fdv_event event, fdv_stream stream)) \
    X(EventSynchronize, "cuEventSynchronize", (fdv_event event)) \
    X(StreamIsCapturing, "cuStreamIsCapturing", (fdv_stream stream, int *status)) \
    X(LaunchKernel, "cuLaunchKernel", \
      (fdv_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
       unsigned block_y, unsigned block_z, unsigned shared, fdv_stream stream, void **arguments, void **extra))

typedef struct {
#define FDV_MEMBER(name, symbol, arguments) fdv_result (*name) arguments;
    FDV_FUNCTIONS(FDV_MEMBER)
#undef FDV_MEMBER
} fdv_driver;

/* Whether a call was refused because some thread captures a stream into a graph: it can be made again later.
 * */
static inline int fdv_is_capture(fdv_result result)
{
    return result >= FDV_CAPTURE_UNSUPPORTED && result <= FDV_CAPTURED_EVENT;
}

/* While a thread captures in global mode, as PyTorch does, other threads must not allocate, load or wait: the
 * call fails, and the capture is invalidated.  No such call made here can become part of a capture, so the
 * calling thread is exempted.  *mode is its previous mode, to be restored by another call. */
static inline fdv_result fdv_relax(const fdv_driver *driver, int *mode)
{
    *mode = FDV_CAPTURE_RELAXED;
    return driver->ThreadExchangeCaptureMode(mode);
}

/* Look the functions up.  NULL, or what is missing: the loader's own message, or a function's name (then
 * *symbol is 1). */
static inline const char *fdv_open(fdv_driver *driver, const char *library, int *symbol)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    void *found;
    *symbol = 0;
    if (handle == NULL)
        return dlerror();
    *symbol = 1;
    /* POSIX has dlsym's result converted to a function pointer; C does not, hence the copy. */
#define FDV_LOOK_UP(name, text, arguments) \
    found = dlsym(handle, text); \
    if (found == NULL) \
        return text; \
    memcpy(&driver->name, &found, sizeof found);
    FDV_FUNCTIONS(FDV_LOOK_UP)
#undef FDV_LOOK_UP
    *symbol = 0;
    return NULL;
}

#endif
