"""CRC-32C, bit by bit in a table: polynomial 0x1EDC6F41 reflected, as in iSCSI (RFC 3720, appendix B.4)."""

from __future__ import annotations

POLYNOMIAL = 0x82F63B78


def _of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = [_of_byte(byte) for byte in range(256)]


def crc32c(data: bytes) -> int:
    """The checksum of some bytes."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = crc >> 8 ^ table[crc & 0xFF ^ byte]
    return crc ^ 0xFFFFFFFF
