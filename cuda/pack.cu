/* SPDX-License-Identifier: Apache-2.0
 *
 * The kernel: pack.h's phases, with a barrier between two of them.
 */
#include "cuda/pack.h"

extern "C" __global__ void fdk_pack(const fdk_job job)
{
    extern __shared__ int32_t shared[];
#pragma unroll
    for (int phase = 0; phase < FDK_PHASES; phase++) {
        if (phase > 0)
            __syncthreads();
        fdk_phase(&job, phase, shared, (int32_t)blockIdx.x, (int32_t)threadIdx.x, (int32_t)gridDim.x,
                  (int32_t)blockDim.x);
    }
}
