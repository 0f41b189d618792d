/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * disk URL [SECONDS]: writes the first MiB of a remote disk, with 32 operations in flight, and
 * reads it back, once or for SECONDS. This overwrites data on the disk! While the target is
 * unreachable, the program waits. Several URLs in one argument, separated by blanks, are several
 * paths.
 *
 *   cc disk.c $(pkg-config --cflags --libs farblock) -o disk
 *   ./disk 'nvme+tcp://192.0.2.1/nqn.2026-11.org.example:scratch?ns=1'
 */
#include <farblock.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DEPTH = 32, BYTES = 1 << 20 };

static void check(fb_status status)
{
	if (status == FB_STATUS_OK)
		return;
	fprintf(stderr, "%s: %s\n", fb_status_text(status), fb_last_error());
	exit(1);
}

/* Runs operation `kind` on every piece of `data`, DEPTH at a time, without a copy. */
static void transfer(fb_queue *queue, uint32_t kind, unsigned char *data, size_t piece)
{
	size_t submitted = 0, completed = 0, count = BYTES / piece;

	while (completed < count) {
		fb_completion done[DEPTH];
		int32_t found;

		for (; submitted < count && submitted - completed < DEPTH; submitted++) {
			size_t at = submitted * piece;
			fb_op op = {
				.kind = kind, .data = data + at, .offset = at, .length = piece,
				.user = data + at,
			};
			check(fb_submit(queue, &op));
		}
		found = fb_poll(queue, done, 1, DEPTH, -1);
		if (found < 0)
			check((fb_status)found);
		for (int32_t i = 0; i < found; i++) {
			if (done[i].status != FB_STATUS_OK) {
				long at = (long)((unsigned char *)done[i].user - data);
				fprintf(stderr, "at %ld: %s\n", at, fb_status_text(done[i].status));
				exit(1);
			}
		}
		completed += (size_t)found;
	}
}

/* Exits with an error at the first byte that differs from the expected one. */
static void compare(const unsigned char *read, const unsigned char *there)
{
	for (size_t i = 0; i < BYTES; i++) {
		if (read[i] != there[i]) {
			fprintf(stderr, "offset %zu: the disk returned different data than was written\n", i);
			exit(1);
		}
	}
}

/* Fills the disk with data that depends on `turn`, and reads it back with both interfaces. */
static void turn(fb_disk *disk, fb_queue *queue, unsigned char *data, unsigned char *read,
		 unsigned int number)
{
	for (size_t i = 0; i < BYTES; i++)
		data[i] = (unsigned char)(i * 31 + i / 4096 + number * 7);
	/* First with many operations in flight. */
	transfer(queue, FB_KIND_WRITE, data, 4096);
	transfer(queue, FB_KIND_READ, read, 4096);
	compare(read, data);
	/* Then one operation after the other. */
	check(fb_write_zeroes(disk, 0, BYTES / 2, 0));
	check(fb_flush(disk));
	check(fb_read(disk, read, 0, BYTES));
	memset(data, 0, BYTES / 2);
	compare(read, data);
}

/* Prints the state of each path. */
static void show_paths(fb_disk *disk, const fb_info *info)
{
	for (uint32_t i = 0; i < info->paths; i++) {
		fb_path_info path = { .size = sizeof(path) };

		check(fb_describe_path(disk, i, &path));
		printf("%s: %s, connected again %llu times%s%s\n", path.url,
		       path.state == FB_PATH_STATE_LIVE ? "live" : "not live",
		       (unsigned long long)path.reconnects, path.error[0] ? ": " : "", path.error);
	}
}

int main(int argc, char **argv)
{
	fb_options options = {
		.size = sizeof(options), .queues = 1, .connect_timeout_ms = 2000,
		/* Give up after a minute without the target. */
		.reconnect_delay_ms = 500, .ctrl_loss_timeout_ms = 60000,
	};
	fb_info info = { .size = sizeof(info) };
	unsigned char *data = malloc(BYTES), *read = calloc(1, BYTES);
	time_t end = time(NULL) + (argc == 3 ? atol(argv[2]) : 0);
	unsigned int turns = 0;
	fb_disk *disk;
	fb_queue *queue;

	if (argc < 2 || argc > 3 || !data || !read) {
		fprintf(stderr, "usage: disk URL [SECONDS]\n");
		return 2;
	}
	check(fb_connect(argv[1], &options, &disk));
	check(fb_describe(disk, &info));
	printf("%s\n", info.description);
	if (info.capacity_bytes < BYTES || info.block_size > 4096) {
		fprintf(stderr, "the disk is too small, or its blocks are too large\n");
		return 1;
	}
	check(fb_queue_open(disk, &queue));
	do
		turn(disk, queue, data, read, turns++);
	while (time(NULL) < end);
	check(fb_queue_close(queue));
	show_paths(disk, &info);
	fb_disconnect(disk);
	free(data);
	free(read);
	printf("wrote and read 1 MiB %u times\n", turns);
	return 0;
}
