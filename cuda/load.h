/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel on a device.  The driver may have to compile it, which takes a third of a second.
 */
#ifndef FD_POSTPROC_LOAD_H
#define FD_POSTPROC_LOAD_H

#include "cuda/ring_memory.h"

/* Machine code for devices of one major compute capability, from `minor` up, or PTX (major 0) for all of
 * them. */
typedef struct {
    int major, minor;
    const void *image;
} fdr_image;

static inline fdv_result fdr_load_image(const fdv_driver *driver, const void *image, fdv_function *kernel,
                                        const char **call)
{
    fdv_module module = NULL;
    int registers = 0;
    fdv_result result = driver->ModuleLoadData(&module, image);
    *call = "cuModuleLoadData";
    if (result != 0)
        return result;
    *call = "cuModuleGetFunction";
    result = driver->ModuleGetFunction(kernel, module, "fdk_pack");
    if (result != 0)
        return result;
    /* Makes a driver that loads lazily load now, not at the first launch. */
    *call = "cuFuncGetAttribute";
    return driver->FuncGetAttribute(&registers, FDV_FUNCTION_REGISTERS, *kernel);
}

/* Load the first image that fits, or the next one if the driver rejects it.  In the current context. */
static inline fdv_result fdr_load_any(const fdv_driver *driver, const fdr_image *images, int major, int minor,
                                      fdv_function *kernel, const char **call)
{
    fdv_result result = FDV_NO_IMAGE;
    *call = "cuModuleLoadData";
    for (; images->image != NULL; images++) {
        if (images->major != 0 && (images->major != major || images->minor > minor))
            continue;
        result = fdr_load_image(driver, images->image, kernel, call);
        if (result == 0)
            break;
    }
    return result;
}

/* Retain the device's primary context, which the frameworks use as well, and load the kernel into it.  0, or
 * -1 with the reason in *error. */
static inline int fdr_load(const fdv_driver *driver, const fdr_image *images, fdv_device device, fdr_gpu *gpu,
                           fdr_error *error)
{
    fdv_context popped;
    fdv_result result;
    const char *call;
    int mode, major = 0, minor = 0;
    result = driver->DeviceGetAttribute(&major, FDV_CAPABILITY_MAJOR, device);
    if (result == 0)
        result = driver->DeviceGetAttribute(&minor, FDV_CAPABILITY_MINOR, device);
    if (result != 0)
        return fdr_failed(error, result, "cuDeviceGetAttribute");
    result = driver->PrimaryCtxRetain(&gpu->context, device);
    if (result != 0)
        return fdr_failed(error, result, "cuDevicePrimaryCtxRetain");
    result = driver->CtxPushCurrent(gpu->context);
    if (result != 0)
        return fdr_failed(error, result, "cuCtxPushCurrent");
    call = "cuThreadExchangeStreamCaptureMode";
    result = fdv_relax(driver, &mode);
    if (result == 0) {
        result = fdr_load_any(driver, images, major, minor, &gpu->kernel, &call);
        driver->ThreadExchangeCaptureMode(&mode);
    }
    driver->CtxPopCurrent(&popped);
    return result == 0 ? 0 : fdr_failed(error, result, call);
}

#endif
