"""Cuts the power of ext4 file systems: what was not flushed is gone.

    power_cut.py -|SEED:PERCENT:PAGES MOUNT...

EXT4_IOC_SHUTDOWN without flushing the log: what is in memory, data and
directory entries alike, never reaches the device. With a seed, a range of at
most so many pages of so many percent of the files is written back first, and the
log is committed, as a kernel may do at any moment of its own accord: files are
then there in part. A kernel that caches a file in folios of several pages writes
whole ones, so that more may be there than was asked for; one page is in one folio.
Ends with 0 only where every file system refuses to be written afterwards, and
where every write-back was made that was asked for.
"""

import ctypes
import errno
import fcntl
import os
import random
import struct
import sys

# _IOR('X', 125, __u32), include/uapi/linux/ext4.h
EXT4_IOC_SHUTDOWN = 0x8004587D
EXT4_GOING_FLAGS_NOLOGFLUSH = 2
# SYNC_FILE_RANGE_WAIT_BEFORE | _WRITE | _WAIT_AFTER, sync_file_range(2)
WRITE_BACK = 7
PAGE_BYTES = 4096
SCRATCH = ".power-cut-scratch"


def files(mount):
    for folder, folders, names in os.walk(mount):
        folders[:] = sorted(f for f in folders if not os.path.ismount(os.path.join(folder, f)))
        for name in sorted(names):
            yield os.path.join(folder, name)


def write_back_in_part(mount, choose, percent, most_pages):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    for path in files(mount):
        if choose.randrange(100) >= percent:
            continue
        try:
            file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            # Renamed or removed meanwhile.
            continue
        pages = -(-os.fstat(file).st_size // PAGE_BYTES)
        if pages:
            start = choose.randrange(pages)
            count = choose.randrange(1, min(pages - start, most_pages) + 1)
            if libc.sync_file_range(file, start * PAGE_BYTES, count * PAGE_BYTES, WRITE_BACK) != 0:
                number = ctypes.get_errno()
                sys.exit(f"{path}: sync_file_range: {os.strerror(number)}: nothing would have been torn")
        os.close(file)
    # Flushing any file commits the log, with the sizes of what was written back.
    scratch = os.open(os.path.join(mount, SCRATCH), os.O_CREAT | os.O_WRONLY)
    os.write(scratch, b"x")
    os.fsync(scratch)
    os.close(scratch)


def main():
    tear, mounts = sys.argv[1], sys.argv[2:]
    if tear != "-":
        seed, percent, most_pages = map(int, tear.split(":"))
        choose = random.Random(seed)
        for mount in mounts:
            write_back_in_part(mount, choose, percent, most_pages)
    opened = [os.open(mount, os.O_RDONLY) for mount in mounts]
    for mount in opened:
        fcntl.ioctl(mount, EXT4_IOC_SHUTDOWN, struct.pack("I", EXT4_GOING_FLAGS_NOLOGFLUSH))
    for mount in mounts:
        try:
            os.close(os.open(os.path.join(mount, SCRATCH + "-refused"), os.O_CREAT | os.O_WRONLY))
        except OSError as error:
            if error.errno == errno.EIO:
                continue
            raise
        sys.exit(f"{mount} can still be written: the power was not cut")


main()
