/* SPDX-License-Identifier: Apache-2.0
 *
 * The checksum of a compact frame: CRC-32C of the whole frame, header and body, as if it were sent in one piece
 * and its checksum were 0.  So all pieces of a frame carry the same one.
 */
#ifndef FD_POSTPROC_CHECKSUM_H
#define FD_POSTPROC_CHECKSUM_H

#include "fd_postproc/headers/crc32c.h"
#include "fd_postproc/headers/wire.h"

/* What a frame's checksum must be.  size: at least FDW_FRAME_HEADER. */
static inline uint32_t fdw_checksum_of(const void *frame, int64_t size)
{
    fdw_frame_header h;
    memcpy(&h, frame, sizeof h);
    h.fragment = 0;
    h.fragments = 1;
    h.checksum = 0;
    return fdi_last(fdi_add(fdi_add(FDI_FIRST, &h, sizeof h), (const uint8_t *)frame + sizeof h,
                            size - FDW_FRAME_HEADER));
}

/* Give a whole frame its checksum. */
static inline void fdw_seal(void *frame, int64_t size)
{
    fdw_frame_header h;
    memcpy(&h, frame, sizeof h);
    h.features |= FDW_CHECKSUMMED;
    memcpy(frame, &h, sizeof h);
    h.checksum = fdw_checksum_of(frame, size);
    memcpy(frame, &h, sizeof h);
}

#endif
