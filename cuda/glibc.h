/* SPDX-License-Identifier: Apache-2.0
 *
 * Old names for functions that glibc 2.32 and 2.34 moved from libpthread and libdl into libc.
 *
 * There they got a new version, which a build on a new system would ask for, and a wheel made there would load
 * nowhere else.  The old versions are the same functions and are in both; on an old system the interpreter
 * itself has loaded the two libraries.
 */
#ifndef FD_POSTPROC_GLIBC_H
#define FD_POSTPROC_GLIBC_H

#include <features.h>

#if defined(__x86_64__) && defined(__GLIBC_PREREQ)
#if __GLIBC_PREREQ(2, 34)
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
__asm__(".symver dlerror,dlerror@GLIBC_2.2.5");
__asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_join,pthread_join@GLIBC_2.2.5");
__asm__(".symver pthread_sigmask,pthread_sigmask@GLIBC_2.2.5");
__asm__(".symver pthread_condattr_setclock,pthread_condattr_setclock@GLIBC_2.3.3");
#endif
#endif

#endif
