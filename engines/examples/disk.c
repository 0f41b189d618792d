/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * disk URL: writes the first MiB of a remote disk, with 32 operations in flight, and reads it back.
 * What is there is lost.
 *
 *   cc disk.c $(pkg-config --cflags --libs farblock) -o disk
 *   ./disk 'nvme+tcp://192.0.2.1/nqn.2026-11.org.example:scratch?ns=1'
 */
#include <farblock.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 32, BYTES = 1 << 20 };

static void check(fb_status status)
{
	if (status == FB_STATUS_OK)
		return;
	fprintf(stderr, "%s: %s\n", fb_status_text(status), fb_last_error());
	exit(1);
}

/* Does `kind` to every piece of `data`, DEPTH of them at a time, straight from or to its memory. */
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

int main(int argc, char **argv)
{
	fb_options options = { .size = sizeof(options), .queues = 1, .connect_timeout_ms = 2000 };
	fb_info info = { .size = sizeof(info) };
	unsigned char *wrote = malloc(BYTES), *read = calloc(1, BYTES);
	fb_disk *disk;
	fb_queue *queue;

	if (argc != 2 || !wrote || !read) {
		fprintf(stderr, "usage: disk URL\n");
		return 2;
	}
	check(fb_connect(argv[1], &options, &disk));
	check(fb_describe(disk, &info));
	printf("%s\n", info.description);
	if (info.capacity_bytes < BYTES || info.block_size > 4096) {
		fprintf(stderr, "the disk is too small, or its blocks are too large\n");
		return 1;
	}

	/* Many in flight. */
	for (size_t i = 0; i < BYTES; i++)
		wrote[i] = (unsigned char)(i * 31 + i / 4096);
	check(fb_queue_open(disk, &queue));
	transfer(queue, FB_KIND_WRITE, wrote, 4096);
	transfer(queue, FB_KIND_READ, read, 4096);
	check(fb_queue_close(queue));
	if (memcmp(wrote, read, BYTES) != 0) {
		fprintf(stderr, "what was read is not what was written\n");
		return 1;
	}

	/* One after the other. */
	check(fb_write_zeroes(disk, 0, BYTES / 2, 0));
	check(fb_flush(disk));
	check(fb_read(disk, read, 0, BYTES));
	for (size_t i = 0; i < BYTES; i++) {
		if (read[i] != (i < BYTES / 2 ? 0 : wrote[i])) {
			fprintf(stderr, "at %zu: what was read is not what is there\n", i);
			return 1;
		}
	}
	fb_disconnect(disk);
	free(wrote);
	free(read);
	printf("1 MiB there and back\n");
	return 0;
}
