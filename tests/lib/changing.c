/* Somebody who writes into a tensor while others read it, as a copy from a device does. */
#include <stdint.h>

/* Until *stop: each of n numbers is one of the two, `size` bytes each. */
void change(void *numbers, int64_t n, int size, int64_t one, int64_t other, volatile int32_t *stop)
{
    while (!*stop) {
        for (int64_t k = 0; k < 2 * n; k++) {
            const int64_t value = k < n ? one : other;
            if (size == 8)
                ((volatile int64_t *)numbers)[k % n] = value;
            else
                ((volatile int32_t *)numbers)[k % n] = (int32_t)value;
        }
    }
}
