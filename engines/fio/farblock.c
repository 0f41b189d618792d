/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * An I/O engine for fio: NVMe over TCP through libfarblock, without a kernel module.
 *
 *   fio --ioengine=external:/path/libfarblock-fio.so --name=a --rw=randread --bs=4k --iodepth=32 \
 *       --filename='nvme+tcp\://192.0.2.1\:4420/nqn.2026-11.org.example\:disk?ns=1'
 *
 * Every job has its own connection for each of its files, and one queue for all of them. Data moves
 * directly between fio's buffers and the network. Trims deallocate, syncs flush. The engine
 * reconnects lost connections, and I/O waits meanwhile. A file name of several URLs, separated by
 * blanks, is a disk with several paths.
 * `fio --enghelp=/path/libfarblock-fio.so` shows the options.
 *
 * This file includes fio's headers. Therefore it has fio's licence and not farblock's, and no other
 * part of farblock includes this file. It uses libfarblock under the MIT licence.
 *
 * Not implemented: zoned modes, and opening files after the start of the job. fio 3.33 itself
 * cannot use an external engine with io_submit_mode=offload.
 */
#include <errno.h>
#include <stdlib.h>

#include "fio.h"
#include "optgroup.h"

#include "farblock.h"

#if FIO_IOOPS_VERSION != 31
#warning "written for engine interface 31 (fio 3.33)"
#endif

/* The engine's options, with nvme-cli's names. Times are in seconds; -1 is no limit. */
struct farblock_options {
	/* fio requires this first field. */
	void *pad;
	int reconnect_delay;
	int ctrl_loss_tmo;
	int fast_io_fail_tmo;
	int keep_alive_tmo;
	unsigned int iopolicy;
	unsigned int spin;
	unsigned int hdr_digest;
	unsigned int data_digest;
	char *hostnqn;
	char *hostid;
};

#define FARBLOCK_OPTION(field) \
	.off1 = offsetof(struct farblock_options, field), .category = FIO_OPT_C_ENGINE, \
	.group = FIO_OPT_G_INVALID

/* The largest time of an option in seconds. In milliseconds it must fit into 32 bits. */
#define FARBLOCK_MAX_SECONDS 4000000

static struct fio_option option_list[] = {
	{
		.name = "reconnect_delay",
		.lname = "Longest pause between attempts to reconnect",
		.help = "Longest pause between two attempts, in seconds; the first attempt is immediate",
		.type = FIO_OPT_INT,
		.minval = 1,
		.maxval = FARBLOCK_MAX_SECONDS,
		.def = "10",
		FARBLOCK_OPTION(reconnect_delay),
	},
	{
		.name = "ctrl_loss_tmo",
		.lname = "Time limit for a lost path",
		.help = "Seconds after which a lost path is given up; without paths I/O fails (-1: never)",
		.type = FIO_OPT_INT,
		.minval = -1,
		.maxval = FARBLOCK_MAX_SECONDS,
		.def = "600",
		FARBLOCK_OPTION(ctrl_loss_tmo),
	},
	{
		.name = "fast_io_fail_tmo",
		.lname = "Time limit for I/O without a path",
		.help = "Seconds without a usable path after which I/O fails; reconnecting continues (-1: never)",
		.type = FIO_OPT_INT,
		.minval = -1,
		.maxval = FARBLOCK_MAX_SECONDS,
		.def = "-1",
		FARBLOCK_OPTION(fast_io_fail_tmo),
	},
	{
		.name = "keep_alive_tmo",
		.lname = "Keep alive timeout",
		.help = "Seconds without an answer after which a connection is closed (-1: never)",
		.type = FIO_OPT_INT,
		.minval = -1,
		.maxval = FARBLOCK_MAX_SECONDS,
		.def = "5",
		FARBLOCK_OPTION(keep_alive_tmo),
	},
	{
		.name = "iopolicy",
		.lname = "Path selection",
		.help = "The path of an I/O, if a disk has several",
		.type = FIO_OPT_STR,
		.def = "numa",
		.posval = {
			{ .ival = "numa", .oval = FB_POLICY_NUMA, .help = "The first usable path" },
			{ .ival = "round-robin", .oval = FB_POLICY_ROUND_ROBIN, .help = "All usable paths in turn" },
			{ .ival = "queue-depth", .oval = FB_POLICY_QUEUE_DEPTH, .help = "The path with the fewest I/Os in flight" },
		},
		FARBLOCK_OPTION(iopolicy),
	},
	{
		.name = "spin",
		.lname = "Processor time for latency",
		.help = "Whether a waiting job spins before it sleeps",
		.type = FIO_OPT_STR,
		.def = "balanced",
		.posval = {
			{ .ival = "efficient", .oval = FB_SPIN_EFFICIENT, .help = "Sleep at once" },
			{ .ival = "balanced", .oval = FB_SPIN_BALANCED, .help = "Spin if that makes the load faster" },
			{ .ival = "latency", .oval = FB_SPIN_LATENCY, .help = "Spin during I/O" },
			{ .ival = "always", .oval = FB_SPIN_ALWAYS, .help = "Never sleep" },
		},
		FARBLOCK_OPTION(spin),
	},
	{
		.name = "hdr_digest",
		.lname = "Header digest",
		.help = "Check every header with a CRC",
		.type = FIO_OPT_BOOL,
		.def = "0",
		FARBLOCK_OPTION(hdr_digest),
	},
	{
		.name = "data_digest",
		.lname = "Data digest",
		.help = "Check all data with a CRC",
		.type = FIO_OPT_BOOL,
		.def = "0",
		FARBLOCK_OPTION(data_digest),
	},
	{
		.name = "hostnqn",
		.lname = "Host NQN",
		.help = "The host NQN, instead of this machine's",
		.type = FIO_OPT_STR_STORE,
		FARBLOCK_OPTION(hostnqn),
	},
	{
		.name = "hostid",
		.lname = "Host identifier",
		.help = "The host identifier (a UUID), instead of this machine's",
		.type = FIO_OPT_STR_STORE,
		FARBLOCK_OPTION(hostid),
	},
	{ .name = NULL },
};

/* The state of a job. */
struct job {
	fb_queue *queue;
	fb_disk **disks;
	unsigned int disk_count;
	/* The completions of the last getevents. */
	fb_completion *events;
};

/* Converts a time to milliseconds. The library takes 0 as its default, so 0 becomes 1 ms. */
static uint32_t farblock_ms(int seconds)
{
	if (seconds < 0)
		return FB_FOREVER;
	return seconds ? seconds * 1000U : 1;
}

/* Connects to the disk that a file's name describes. */
static int farblock_connect(struct thread_data *td, struct fio_file *f, fb_disk **disk)
{
	struct farblock_options *o = td->eo;
	fb_options options = {
		.size = sizeof(options),
		.hostnqn = o->hostnqn,
		.hostid = o->hostid,
		.keep_alive_ms = farblock_ms(o->keep_alive_tmo),
		.flags = (o->hdr_digest ? FB_HEADER_DIGEST : 0) | (o->data_digest ? FB_DATA_DIGEST : 0),
		.queues = 1,
		.reconnect_delay_ms = farblock_ms(o->reconnect_delay),
		.ctrl_loss_timeout_ms = farblock_ms(o->ctrl_loss_tmo),
		.fast_io_fail_timeout_ms = farblock_ms(o->fast_io_fail_tmo),
		.policy = o->iopolicy,
		.spin = o->spin,
	};
	fb_status status;

	/* Without a backslash before each colon, fio cuts nvme+tcp://... to "nvme+tcp". */
	if (!strcmp(f->file_name, "nvme+tcp") || !strcmp(f->file_name, "nvme+rdma")) {
		log_err("farblock: %s is not an address: fio splits filename at colons, so write "
			"filename=%s\\://..., with \\: for each colon\n", f->file_name, f->file_name);
		td_verror(td, EINVAL, "filename");
		return 1;
	}
	options.queue_depth = td->o.iodepth <= 128 ? 128 : min(td->o.iodepth + 1, 1024U);
	status = fb_connect(f->file_name, &options, disk);
	if (status == FB_STATUS_OK)
		return 0;
	log_err("farblock: %s: %s\n", f->file_name, fb_last_error());
	td_verror(td, fb_status_errno(status), "fb_connect");
	return 1;
}

/* Refuses options with which every I/O would fail. */
static int farblock_check(struct thread_data *td, struct fio_file *f, const fb_info *info)
{
	int ddir;

	if ((td_write(td) || td_trim(td)) && (info->flags & FB_READ_ONLY)) {
		log_err("farblock: %s: the disk is read-only\n", f->file_name);
		td_verror(td, EROFS, "fb_describe");
		return 1;
	}
	for (ddir = 0; ddir < DDIR_RWDIR_CNT; ddir++) {
		if (td->o.min_bs[ddir] % info->block_size == 0)
			continue;
		log_err("farblock: %s: bs=%llu is not a multiple of the disk's block size, %u\n",
			f->file_name, td->o.min_bs[ddir], info->block_size);
		td_verror(td, EINVAL, "fb_describe");
		return 1;
	}
	return 0;
}

/*
 * Finds out the sizes of the files. This runs in fio's main process, which forks later, so it
 * closes its connections.
 */
static int farblock_setup(struct thread_data *td)
{
	struct fio_file *f;
	unsigned int i;

	if (!td->files_index) {
		log_err("farblock: set filename=nvme+tcp\\://..., with \\: for each colon\n");
		td_verror(td, EINVAL, "filename");
		return 1;
	}
	for_each_file(td, f, i) {
		fb_info info = { .size = sizeof(info) };
		fb_disk *disk;
		int error;

		if (farblock_connect(td, f, &disk))
			return 1;
		error = fb_describe(disk, &info) != FB_STATUS_OK || farblock_check(td, f, &info);
		fb_disconnect(disk);
		if (error)
			return 1;
		f->real_file_size = info.capacity_bytes;
		f->filetype = FIO_TYPE_BLOCK;
		fio_file_set_size_known(f);
	}
	return 0;
}

static void farblock_cleanup(struct thread_data *td)
{
	struct job *job = td->io_ops_data;
	unsigned int i;

	if (!job)
		return;
	td->io_ops_data = NULL;
	if (fb_queue_close(job->queue) != FB_STATUS_OK)
		log_err("farblock: %s\n", fb_last_error());
	for (i = 0; i < job->disk_count; i++)
		fb_disconnect(job->disks[i]);
	free(job->disks);
	free(job->events);
	free(job);
}

/* Connects a job's files, in the job's own thread or process. */
static int farblock_init(struct thread_data *td)
{
	struct job *job = calloc(1, sizeof(*job));
	struct fio_file *f;
	unsigned int i;

	td->io_ops_data = job;
	if (!job)
		return 1;
	job->disks = calloc(td->o.nr_files, sizeof(*job->disks));
	job->events = calloc(td->o.iodepth, sizeof(*job->events));
	if (!job->disks || !job->events)
		return 1;
	for_each_file(td, f, i) {
		fb_disk *disk;
		fb_status status;
		uint32_t index;

		if (farblock_connect(td, f, &disk))
			return 1;
		job->disks[job->disk_count++] = disk;
		status = job->queue ? fb_queue_add(job->queue, disk, &index)
				    : fb_queue_open(disk, &job->queue);
		if (status != FB_STATUS_OK) {
			log_err("farblock: %s: %s\n", f->file_name, fb_last_error());
			td_verror(td, fb_status_errno(status), "fb_queue_open");
			return 1;
		}
	}
	return 0;
}

/*
 * Whether the job may sleep after it has queued I/O, before it calls getevents. All other jobs
 * queue I/O up to the depth and then call getevents, which starts all queued I/O in one system
 * call.
 */
static bool farblock_may_sleep(struct thread_data *td)
{
	return should_check_rate(td) || td->o.thinktime || td->o.read_iolog_file;
}

static enum fio_q_status farblock_queue(struct thread_data *td, struct io_u *io_u)
{
	struct job *job = td->io_ops_data;
	fb_op op = {
		.user = io_u,
		.offset = io_u->offset,
		.length = io_u->xfer_buflen,
		.disk = io_u->file->fileno,
	};
	fb_status status;

	fio_ro_check(td, io_u);
	switch (io_u->ddir) {
	case DDIR_READ:
		op.kind = FB_KIND_READ;
		op.data = io_u->xfer_buf;
		break;
	case DDIR_WRITE:
		op.kind = FB_KIND_WRITE;
		op.data = io_u->xfer_buf;
		op.flags = td->o.sync_io ? FB_DURABLE : 0;
		break;
	case DDIR_TRIM:
		op.kind = FB_KIND_DEALLOCATE;
		break;
	case DDIR_SYNC:
	case DDIR_DATASYNC:
		op.kind = FB_KIND_FLUSH;
		break;
	default:
		io_u->error = EINVAL;
		return FIO_Q_COMPLETED;
	}
	status = fb_submit(job->queue, &op);
	if (status == FB_STATUS_BUSY)
		return FIO_Q_BUSY;
	if (status != FB_STATUS_OK) {
		log_err("farblock: %s\n", fb_last_error());
		io_u->error = fb_status_errno(status);
		return FIO_Q_COMPLETED;
	}
	/* Ignore an error here: getevents will fail in the same way, and reports it. */
	if (farblock_may_sleep(td))
		fb_poll(job->queue, NULL, 0, 0, 0);
	return FIO_Q_QUEUED;
}

static int farblock_getevents(struct thread_data *td, unsigned int min, unsigned int max,
			      const struct timespec *t)
{
	struct job *job = td->io_ops_data;
	int64_t timeout_us = t ? t->tv_sec * 1000000LL + t->tv_nsec / 1000 : -1;
	int count;

	max = min(max, td->o.iodepth);
	count = fb_poll(job->queue, job->events, min(min, max), max, timeout_us);
	if (count < 0) {
		log_err("farblock: %s\n", fb_last_error());
		return -fb_status_errno(count);
	}
	return count;
}

static struct io_u *farblock_event(struct thread_data *td, int event)
{
	struct job *job = td->io_ops_data;
	const fb_completion *completion = &job->events[event];
	struct io_u *io_u = completion->user;

	io_u->error = fb_status_errno(completion->status);
	io_u->resid = 0;
	return io_u;
}

/* Does nothing: init has already connected the job's files. */
static int farblock_open_file(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

static int farblock_close_file(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

/* Does nothing: the engine has no cache to drop. */
static int farblock_invalidate(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

struct ioengine_ops ioengine = {
	.name		= "farblock",
	.version	= FIO_IOOPS_VERSION,
	.flags		= FIO_DISKLESSIO | FIO_NOEXTEND | FIO_NODISKUTIL | FIO_RAWIO,
	.setup		= farblock_setup,
	.init		= farblock_init,
	.cleanup	= farblock_cleanup,
	.queue		= farblock_queue,
	.getevents	= farblock_getevents,
	.event		= farblock_event,
	.open_file	= farblock_open_file,
	.close_file	= farblock_close_file,
	.invalidate	= farblock_invalidate,
	.options	= option_list,
	.option_struct_size	= sizeof(struct farblock_options),
};
