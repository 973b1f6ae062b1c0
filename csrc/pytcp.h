/* What the C helpers offer to Python. cffi reads everything below the marker line as it stands, so
 * keep it to plain declarations. Loops over bytes only: every decision about TCP is made in Python,
 * and every function here has a Python twin that gives the same answer.
 */
#ifndef PYTCP_H
#define PYTCP_H

#include <stddef.h>
#include <stdint.h>

/* cffi: from here */

/* Raised with every change of this file; pytcp.native.ABI must be the same. */
static const int PYTCP_ABI = 1;

/* Ones' complement sum (RFC 1071) of n bytes taken as big-endian 16-bit words, an odd last byte
 * padded with zero, plus start; folded to 16 bits, not complemented. */
uint32_t pytcp_ones_sum(const void *p, size_t n, uint32_t start);

/* cffi: to here */

#endif
