/*
 * For LD_PRELOAD: to a program that speaks Linux's SG_IO, as those of sg3_utils do, a path `iscsi://PORTAL/TARGET/LUN` is a
 * SCSI device; its commands go by libiscsi. Where the kernel has no initiator, this is how those programs reach a target.
 *
 *   cc -shared -fPIC -o sg_over_iscsi.so sg_over_iscsi.c -liscsi -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <scsi/sg.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/types.h>

#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>

#define UNITS 64

/* By file descriptor. */
static struct {
	struct iscsi_context *iscsi;
	int lun;
} units[UNITS];

static int plain_open(const char *path, int flags, mode_t mode)
{
	int (*next)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
	return next(path, flags, mode);
}

/* Takes the unit attentions that a new session meets, as a kernel does. */
static void settle(struct iscsi_context *iscsi, int lun)
{
	struct scsi_task *task;
	int attention = 1;
	int turn;

	for (turn = 0; attention && turn < 8; turn++) {
		task = iscsi_testunitready_sync(iscsi, lun);
		attention = task && task->status == SCSI_STATUS_CHECK_CONDITION &&
			    task->sense.key == SCSI_SENSE_UNIT_ATTENTION;
		if (task)
			scsi_free_scsi_task(task);
	}
}

static int attach(const char *path)
{
	const char *name = getenv("ISCSI_INITIATOR");
	struct iscsi_context *iscsi =
		iscsi_create_context(name ? name : "iqn.2026-11.example.client:sg");
	struct iscsi_url *url = iscsi ? iscsi_parse_full_url(iscsi, path) : NULL;
	int fd;

	if (url == NULL) {
		errno = EINVAL;
		return -1;
	}
	iscsi_set_session_type(iscsi, ISCSI_SESSION_NORMAL);
	iscsi_set_header_digest(iscsi, ISCSI_HEADER_DIGEST_NONE_CRC32C);
	/* Always the same initiator port: persistent reservations are between programs. */
	iscsi_set_isid_random(iscsi, 0x5367, 0);
	if (iscsi_connect_sync(iscsi, url->portal) != 0 || iscsi_login_sync(iscsi) != 0) {
		fprintf(stderr, "sg_over_iscsi: %s\n", iscsi_get_error(iscsi));
		errno = ENXIO;
		return -1;
	}
	settle(iscsi, url->lun);
	/* A descriptor that is nobody else's. */
	fd = plain_open("/dev/null", O_RDWR, 0);
	if (fd < 0 || fd >= UNITS) {
		errno = EMFILE;
		return -1;
	}
	units[fd].iscsi = iscsi;
	units[fd].lun = url->lun;
	iscsi_destroy_url(url);
	return fd;
}

int open(const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;
	va_end(args);
	return strncmp(path, "iscsi://", 8) == 0 ? attach(path) : plain_open(path, flags, mode);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));

/* What fortified programs call. */
int __open64_2(const char *path, int flags)
{
	return open(path, flags);
}

/* Sense data follows a two-byte length (RFC 7143 11.4.7). */
static void take_sense(struct sg_io_hdr *io, const struct scsi_task *task)
{
	int length;

	if (io->sbp == NULL || task->datain.size < 2)
		return;
	length = task->datain.data[0] << 8 | task->datain.data[1];
	if (length > task->datain.size - 2)
		length = task->datain.size - 2;
	if (length > io->mx_sb_len)
		length = io->mx_sb_len;
	memcpy(io->sbp, task->datain.data + 2, length);
	io->sb_len_wr = length;
}

static int perform(int fd, struct sg_io_hdr *io)
{
	struct iscsi_data out = {.size = io->dxfer_len, .data = io->dxferp};
	int writes = io->dxfer_direction == SG_DXFER_TO_DEV;
	int reads = io->dxfer_direction == SG_DXFER_FROM_DEV;
	int direction = writes ? SCSI_XFER_WRITE : reads ? SCSI_XFER_READ : SCSI_XFER_NONE;
	struct scsi_task *task = scsi_create_task(io->cmd_len, io->cmdp, direction,
						  writes || reads ? io->dxfer_len : 0);

	if (task == NULL) {
		errno = ENOMEM;
		return -1;
	}
	if (iscsi_scsi_command_sync(units[fd].iscsi, units[fd].lun, task, writes ? &out : NULL) == NULL) {
		errno = EIO;
		return -1;
	}
	io->status = task->status;
	io->masked_status = task->status >> 1 & 0x1f;
	io->host_status = io->driver_status = io->sb_len_wr = io->resid = io->duration = 0;
	if (task->status == SCSI_STATUS_CHECK_CONDITION) {
		take_sense(io, task);
		io->driver_status = 8; /* DRIVER_SENSE */
	} else if (reads) {
		unsigned int got = task->datain.size < 0 ? 0 : task->datain.size;

		got = got < io->dxfer_len ? got : io->dxfer_len;
		memcpy(io->dxferp, task->datain.data, got);
		io->resid = io->dxfer_len - got;
	} else if (task->residual_status == SCSI_RESIDUAL_UNDERFLOW) {
		io->resid = task->residual;
	}
	io->info = task->status ? SG_INFO_CHECK : SG_INFO_OK;
	scsi_free_scsi_task(task);
	return 0;
}

int ioctl(int fd, unsigned long request, ...)
{
	int (*next)(int, unsigned long, ...) = dlsym(RTLD_NEXT, "ioctl");
	va_list args;
	void *argument;

	va_start(args, request);
	argument = va_arg(args, void *);
	va_end(args);
	if (fd < 0 || fd >= UNITS || units[fd].iscsi == NULL)
		return next(fd, request, argument);
	switch (request) {
	case SG_IO:
		return perform(fd, argument);
	case SG_GET_VERSION_NUM:
		*(int *)argument = 30536;
		return 0;
	default:
		errno = ENOTTY;
		return -1;
	}
}
