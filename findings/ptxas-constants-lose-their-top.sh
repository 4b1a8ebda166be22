#!/usr/bin/env bash
# Guess: the assembler refuses a constant that does not fit a 32-bit register, or warns.
# Seen: ptxas 11.8.89 and 13.0.88 keep the low 32 bits in silence: 4294967303 and -4294967289 make the same machine
# code as 7, to the byte.  Only a constant above 64 bits is an error.
# Why it matters: sizes of whole batches of log-probabilities pass 4 GiB.  A generator of PTX has to check itself.
. "$(dirname "$0")/in-a-temporary-folder" --no-deps nvidia-cuda-nvcc-cu11==11.8.89 nvidia-cuda-nvcc==13.0.88
for constant in 7 4294967303 -4294967289 8 0xFFFFFFFFFFFFFFFFF; do
    cat > kernel.ptx <<P
.version 7.8
.target sm_75
.address_size 64
.visible .entry kernel(.param .u64 out)
{
    .reg .b64 %address;
    .reg .b32 %value;
    ld.param.u64 %address, [out];
    mov.u32 %value, $constant;
    st.global.u32 [%address], %value;
    ret;
}
P
    for version in cuda_nvcc cu13; do
        ptxas=$(echo "$environment"/lib/python*/site-packages/nvidia/"$version"/bin/ptxas)
        if "$ptxas" -arch=sm_75 -o "$version-$constant" kernel.ptx 2> log; then
            same=$(cmp -s "$version-7" "$version-$constant" && echo "that of 7" || echo "another")
            echo "$version, $constant: $same"
        else
            echo "$version, $constant: $(grep -o 'Constant overflow' log)"
        fi
    done
done > seen
seen_is <<'S'
cuda_nvcc, 7: that of 7
cu13, 7: that of 7
cuda_nvcc, 4294967303: that of 7
cu13, 4294967303: that of 7
cuda_nvcc, -4294967289: that of 7
cu13, -4294967289: that of 7
cuda_nvcc, 8: another
cu13, 8: another
cuda_nvcc, 0xFFFFFFFFFFFFFFFFF: Constant overflow
cu13, 0xFFFFFFFFFFFFFFFFF: Constant overflow
S
