/* A main for compilers without libFuzzer: run each input named on the command line once. */
#include "check.h"

int main(int argc, char **argv)
{
    for (int k = 1; k < argc; k++) {
        static uint8_t input[1 << 20];
        FILE *file = fopen(argv[k], "rb");
        size_t size;
        uint8_t *copy;
        if (file == NULL) {
            perror(argv[k]);
            return 2;
        }
        size = fread(input, 1, sizeof input, file);
        fclose(file);
        copy = exactly((int64_t)size);
        memcpy(copy, input, size);
        fprintf(stderr, "%s\n", argv[k]);
        LLVMFuzzerTestOneInput(copy, size);
        free(copy);
    }
    printf("%d inputs\n", argc - 1);
    return 0;
}
