/* Fuzz target: bytes from a queue, through the bounds gate and the reassembly of frames, and out again.
 *
 * Input: a byte that chooses channel and layout, and whether checksums are verified, then messages, each a little-endian uint16 length, a byte for
 * the message type and how much time passes, and the payload.  A length beyond the input means: all the rest.
 */
#include "check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fdf_assembly frames;
    const fdw_layout *layout;
    int channel;
    int64_t now = 0;
    if (size < 1)
        return 0;
    channel = data[0] & 3;
    layout = &LAYOUTS[(data[0] >> 2 & 31) % N_LAYOUTS];
    fdf_begin(&frames, layout, channel, data[0] >> 7, size); /* a fuzzer seldom finds the right checksum */
    data++;
    size--;
    while (size >= 3) {
        size_t length = data[0] | (size_t)data[1] << 8;
        const uint8_t how = data[2];
        uint8_t *message;
        fdw_message m;
        fdw_fault fault;
        data += 3;
        size -= 3;
        length = length < size ? length : size;
        message = exactly((int64_t)length);
        memcpy(message, data, length);
        data += length;
        size -= length;
        fault.field = -1;
        if (how & 1) {
            const int64_t had = frames.fragments;
            int status;
            now += (how >> 1) % 4 ? 1000 : FDF_SILENT_NS;
            status = fdf_accept(&frames, layout, channel, message, (int64_t)length, now, &m, &fault);
            INSIST(frames.fragments - had == 0 || frames.fragments - had == 1);
            INSIST(status != FDF_NO_MEMORY && (status != FDF_REFUSED || fault.field >= 0));
            if (status == FDF_WHOLE)
                check_message(&m, layout);
        } else if (fdw_open(&m, layout, channel, message, (int64_t)length, &fault) == 0) {
            check_message(&m, layout);
        } else {
            INSIST(fault.field >= 0);
        }
        free(message);
    }
    fdf_free(&frames);
    return 0;
}
