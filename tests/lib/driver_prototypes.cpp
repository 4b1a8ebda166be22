// Every function and number of cuda/driver.h against NVIDIA's cuda.h: compiles if they agree.
//
// A parameter agrees if both are pointers, to things that agree, or both are integers (an enumeration is one) of the
// same size; a handle is a pointer to whatever.  A symbol agrees if it is what cuda.h makes of the plain name, so
// that it has that header's prototype.
#include <cuda.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cuda/driver.h"

template <class Ours, class Theirs> constexpr bool agree();

template <class Ours, class Theirs> constexpr bool pointees_agree()
{
    using A = std::remove_cv_t<Ours>;
    using B = std::remove_cv_t<Theirs>;
    if constexpr (std::is_void_v<A> || std::is_void_v<B>)
        return std::is_void_v<A> && std::is_void_v<B>;
    else if constexpr (std::is_class_v<A> || std::is_class_v<B>) // what a handle points to
        return std::is_class_v<A> && std::is_class_v<B>;
    else
        return agree<A, B>();
}

template <class Ours, class Theirs> constexpr bool agree()
{
    if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>)
        return pointees_agree<std::remove_pointer_t<Ours>, std::remove_pointer_t<Theirs>>();
    else if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>)
        return false;
    else
        return sizeof(Ours) == sizeof(Theirs) && (std::is_integral_v<Ours> || std::is_enum_v<Ours>)
               && (std::is_integral_v<Theirs> || std::is_enum_v<Theirs>);
}

template <class Ours, class Theirs> struct same : std::false_type {};
template <class R, class... A, class S, class... B>
struct same<R (*)(A...), S (*)(B...)> : std::bool_constant<[] {
    if constexpr (sizeof...(A) != sizeof...(B))
        return false;
    else
        return agree<R, S>() && (... && agree<A, B>());
}()> {};

#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
constexpr bool equal(const char *a, const char *b)
{
    return *a == *b && (*a == 0 || equal(a + 1, b + 1));
}

#define CHECK(ours, plain) \
    static_assert(same<decltype(fdv_driver::ours), decltype(&plain)>::value, "prototype of " #plain); \
    static_assert(equal(symbol_of_##ours, TEXT(plain)), "symbol of " #plain);
#define SYMBOL(name, symbol, arguments) constexpr const char *symbol_of_##name = symbol;
FDV_FUNCTIONS(SYMBOL)
#include "driver_checks.h" // CHECK of each, made of the list by the test

static_assert(FDV_OUT_OF_MEMORY == CUDA_ERROR_OUT_OF_MEMORY && FDV_NOT_INITIALIZED == CUDA_ERROR_NOT_INITIALIZED
              && FDV_NO_DEVICE == CUDA_ERROR_NO_DEVICE && FDV_NO_IMAGE == CUDA_ERROR_NO_BINARY_FOR_GPU
              && FDV_CAPTURE_UNSUPPORTED == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
              && FDV_CAPTURED_EVENT == CUDA_ERROR_CAPTURED_EVENT);
static_assert(FDV_CAPTURE_RELAXED == CU_STREAM_CAPTURE_MODE_RELAXED && FDV_HOST_PORTABLE == CU_MEMHOSTALLOC_PORTABLE
              && FDV_HOST_MAPPED == CU_MEMHOSTALLOC_DEVICEMAP && FDV_EVENT_BLOCKING == CU_EVENT_BLOCKING_SYNC
              && FDV_EVENT_NO_TIMING == CU_EVENT_DISABLE_TIMING
              && FDV_CAPABILITY_MAJOR == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
              && FDV_CAPABILITY_MINOR == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
              && FDV_POINTER_ORDINAL == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
              && FDV_FUNCTION_REGISTERS == CU_FUNC_ATTRIBUTE_NUM_REGS);
