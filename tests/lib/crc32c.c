/* headers/crc32c.h, each of its ways. */
#include "fd_postproc/headers/crc32c.h"

int has_instruction(void)
{
    fdi_fill_bytes();
#ifdef FDI_HARDWARE
    return fdi_has_instruction;
#else
    return 0;
#endif
}

uint32_t by_tables(const void *data, int64_t size) { return fdi_last(fdi_by_tables(FDI_FIRST, data, size)); }
uint32_t sum(const void *data, int64_t size) { return fdi_last(fdi_add(FDI_FIRST, data, size)); }
