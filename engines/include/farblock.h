/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Made by cbindgen from crates/tools/capi: change it there, then `make header`. */

#ifndef FARBLOCK_H
#define FARBLOCK_H

#include <stddef.h>
#include <stdint.h>

// A property of a disk: whatever would change it is refused.
#define FB_READ_ONLY 1

// A property of a disk: what was written may be lost until it is flushed.
#define FB_VOLATILE_CACHE 2

// A property of a disk: deallocating gives space back.
#define FB_DEALLOCATE 4

// For a write, or for zeroes: durable when it is complete.
#define FB_DURABLE 1

// For zeroes: the space stays allocated.
#define FB_KEEP_ALLOCATED 2

// A time in the options that never comes.
#define FB_FOREVER UINT32_MAX

// An option: check every header with a CRC.
#define FB_HEADER_DIGEST 1

// An option: check all data with a CRC.
#define FB_DATA_DIGEST 2

// The most bytes of the text in `fb_path_info.error`, its zero byte included.
#define FB_ERROR_BYTES 256

// The most operations that a queue holds, those waiting for `fb_poll` included.
#define FB_QUEUE_OPERATIONS 65536

// The most disks that a queue serves.
#define FB_QUEUE_DISKS 1024

// How a call or an operation ended. New versions may add values: treat what you do not know as a
// failure.
enum fb_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It is done.
  FB_STATUS_OK = 0,
  // An argument makes no sense: it is null, unknown, or contradicts another one.
  FB_STATUS_ARGUMENT = -1,
  // An offset or a length is not a multiple of the block size.
  FB_STATUS_ALIGNMENT = -2,
  // The range lies outside of the disk.
  FB_STATUS_RANGE = -3,
  // The operation is too large: divide it.
  FB_STATUS_TOO_LARGE = -4,
  // The connection could not be made.
  FB_STATUS_CONNECT = -5,
  // The connection is lost. Whether a write in flight was done is not known.
  FB_STATUS_LOST = -6,
  // The disk is read-only.
  FB_STATUS_READ_ONLY = -7,
  // No space is left on the disk's storage.
  FB_STATUS_NO_SPACE = -8,
  // The data could not be read.
  FB_STATUS_READ = -9,
  // The data (or, for a flush, earlier data) could not be written.
  FB_STATUS_WRITE = -10,
  // The disk, or this version of the library, cannot do it.
  FB_STATUS_UNSUPPORTED = -11,
  // The operation was given up on purpose, as by `fb_options.waiting`.
  FB_STATUS_ABORTED = -12,
  // The system is out of memory, descriptors or queues.
  FB_STATUS_RESOURCES = -13,
  // The wrong thread (a queue belongs to the one that opened it), or a forked process.
  FB_STATUS_THREAD = -14,
  // Too much is in flight on the queue: poll first.
  FB_STATUS_BUSY = -15,
  // A bug of the library's; the message is worth reporting.
  FB_STATUS_BUG = -16,
  // A reservation of another host forbids the operation.
  FB_STATUS_CONFLICT = -17,
  // The controller or the disk denies access to this host.
  FB_STATUS_DENIED = -18,
  // The disk cannot be used yet; another attempt may succeed.
  FB_STATUS_NOT_READY = -19,
  // The write is larger than what the disk writes atomically: divide it.
  FB_STATUS_ATOMIC = -20,
  // The controller has no such subsystem, or the subsystem no such namespace.
  FB_STATUS_MISSING = -21,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_status fb_status;
#else
typedef int32_t fb_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What an operation does: a value of `fb_op.kind`.
enum fb_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Reads into `data`.
  FB_KIND_READ = 1,
  // Writes from `data`. FB_DURABLE is possible.
  FB_KIND_WRITE = 2,
  // Makes durable what was complete before. No range.
  FB_KIND_FLUSH = 3,
  // Makes the range read as zeroes. FB_DURABLE, FB_KEEP_ALLOCATED are possible.
  FB_KIND_WRITE_ZEROES = 4,
  // Says that the range is not needed any more.
  FB_KIND_DEALLOCATE = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_kind fb_kind;
#else
typedef uint32_t fb_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Which event loop moves the data: a value of `fb_options.engine`.
enum fb_engine
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // io_uring where it works, else the portable one.
  FB_ENGINE_AUTO = 0,
  // Linux io_uring.
  FB_ENGINE_URING = 1,
  // Readiness: epoll and the like.
  FB_ENGINE_PORTABLE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_engine fb_engine;
#else
typedef uint32_t fb_engine;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Which of several paths an operation takes: a value of `fb_options.policy`. The names are the
// Linux kernel's; paths that the target calls optimized (ANA) come before others, always.
enum fb_policy
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The first in the order given, for as long as it is usable.
  FB_POLICY_NUMA = 0,
  // One after the other.
  FB_POLICY_ROUND_ROBIN = 1,
  // The one with the fewest operations of the same queue in flight.
  FB_POLICY_QUEUE_DEPTH = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_policy fb_policy;
#else
typedef uint32_t fb_policy;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How much processor time waiting may take, for the sake of latency: a value of `fb_options.spin`.
// The names are those of farblock's --spin.
enum fb_spin
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Who waits looks for up to 200 us before it sleeps where that makes the load faster.
  FB_SPIN_BALANCED = 0,
  // It sleeps at once.
  FB_SPIN_EFFICIENT = 1,
  // It looks as long as there is I/O, and a millisecond longer: up to a processor under load.
  FB_SPIN_LATENCY = 2,
  // It never sleeps.
  FB_SPIN_ALWAYS = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_spin fb_spin;
#else
typedef uint32_t fb_spin;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a disk as a whole can do: a value of `fb_info.state`.
enum fb_disk_state
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Every path is connected.
  FB_DISK_STATE_LIVE = 1,
  // Some path is connected.
  FB_DISK_STATE_DEGRADED = 2,
  // No path is connected; operations wait.
  FB_DISK_STATE_WAITING = 3,
  // Every path was given up; operations fail.
  FB_DISK_STATE_DEAD = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_disk_state fb_disk_state;
#else
typedef uint32_t fb_disk_state;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Where a path is: a value of `fb_path_info.state`.
enum fb_path_state
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // It was never connected.
  FB_PATH_STATE_CONNECTING = 1,
  // It is connected.
  FB_PATH_STATE_LIVE = 2,
  // It was lost, and is tried again.
  FB_PATH_STATE_RECONNECTING = 3,
  // It was given up.
  FB_PATH_STATE_DEAD = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_path_state fb_path_state;
#else
typedef uint32_t fb_path_state;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a machine said that it shares.
typedef struct fb_discovery fb_discovery;

// A connected namespace, over one path or several. Any thread may use it, several at a time. It
// outlives its connections: what was lost is connected again, and operations wait meanwhile.
typedef struct fb_disk fb_disk;

// A way to have many operations in flight, on one disk or several, without threads or copies. It
// belongs to the thread that opened it.
typedef struct fb_queue fb_queue;

// How to connect, and how to go on when a connection is lost. Set all to zero, then `size` to
// `sizeof(fb_options)`, then what you want: zero is the default of everything.
typedef struct fb_options {
  // `sizeof(fb_options)`, by which the library knows your version of it.
  size_t size;
  // Host NQN, instead of this machine's.
  const char *hostnqn;
  // Host identifier (a UUID), instead of this machine's.
  const char *hostid;
  // How long each step of connecting may take (5000).
  uint32_t connect_timeout_ms;
  // How long an operation may take before its connection is given up and it is sent over another
  // one (30000; or FB_FOREVER).
  uint32_t io_timeout_ms;
  // After this long without a sign of life either side gives up (5000; or FB_FOREVER).
  uint32_t keep_alive_ms;
  // FB_HEADER_DIGEST, FB_DATA_DIGEST.
  uint32_t flags;
  // An `fb_engine`.
  uint32_t engine;
  // Commands in flight per queue, if the controller allows as many (128).
  uint16_t queue_depth;
  // How many queues can be open at once; blocking calls together use one more (64).
  uint16_t queues;
  // The longest pause between two attempts to reconnect (10000). The first is made at once.
  uint32_t reconnect_delay_ms;
  // A path is given up when it was lost for this long, and the disk is dead with its last path
  // (600000; or FB_FOREVER).
  uint32_t ctrl_loss_timeout_ms;
  // Operations fail when no path was usable for this long, while reconnecting goes on
  // (FB_FOREVER: they wait for as long as there is hope).
  uint32_t fast_io_fail_timeout_ms;
  // How soon to know that a path does not answer any more, if that is to be sooner than
  // `keep_alive_ms` (600 with several paths, else not).
  uint32_t path_timeout_ms;
  // How long to wait before writes are sent anew that were lost with a controller which no other
  // can end, as those of the Linux kernel and SPDK (0: two or three times `keep_alive_ms` and
  // what the controller asks for, after which it must have ended itself by NVMe Base 2.1). With
  // less, a command that is stuck in such a target for longer can undo what was written after
  // it; 1 is as good as none. Reads never wait.
  uint32_t quiesce_ms;
  // An `fb_policy`.
  uint32_t policy;
  // How long `fb_connect` goes on trying when the target is not there (0: one attempt tells; or
  // FB_FOREVER).
  uint32_t connect_wait_ms;
  // Called ten times a second by a blocking call that waits, in the thread of the call: what it
  // gives is 0 to wait on, or anything else to end the call with FB_STATUS_ABORTED, so that a
  // program hears of signals (null: calls wait). An operation that a silent target has ends when
  // its connection is given up (`keep_alive_ms`); a write that was lost with its connection ends
  // when the target is back or given up (`ctrl_loss_timeout_ms`). It may be called until
  // `fb_disconnect`.
  int32_t (*waiting)(void *user);
  // What `waiting` gets.
  void *waiting_user;
  // An `fb_spin`.
  uint32_t spin;
  // Zero.
  uint32_t reserved;
} fb_options;

// Something that a machine shares. Set `size` to `sizeof(fb_entry)` before the call.
typedef struct fb_entry {
  // `sizeof(fb_entry)`, by which the library knows your version of it.
  size_t size;
  // For fb_connect, without a namespace; null if it cannot be connected to. This and the
  // other texts are valid until fb_discovery_free. They are what the other side says, of any
  // characters but in this one, which is printable ASCII.
  const char *url;
  // The subsystem's NQN.
  const char *nqn;
  // Its address (TRADDR).
  const char *address;
  // Its port (TRSVCID).
  const char *service;
  // What it is (SUBTYPE: 1 another discovery service, 2 a subsystem, 3 this service).
  uint32_t kind;
  // How it is reached (TRTYPE: 1 RDMA, 2 Fibre Channel, 3 TCP).
  uint32_t transport;
} fb_entry;

// What a disk is. Set `size` to `sizeof(fb_info)` before the call.
typedef struct fb_info {
  // `sizeof(fb_info)`, by which the library knows your version of it.
  size_t size;
  // The capacity in bytes.
  uint64_t capacity_bytes;
  // The capacity in blocks.
  uint64_t blocks;
  // Operations that do not cross a multiple of this are fastest. 0: no matter.
  uint64_t optimal_bytes;
  // Writes in multiples of this, aligned to it, are fastest. 0: no matter.
  uint64_t preferred_write_bytes;
  // One line for people. Valid until fb_disconnect.
  const char *description;
  // Bytes in a block.
  uint32_t block_size;
  // FB_READ_ONLY, FB_VOLATILE_CACHE, FB_DEALLOCATE.
  uint32_t flags;
  // The namespace's identifier.
  uint32_t namespace_id;
  // How many queues can be open at once, the blocking calls' own not counted.
  uint16_t queues;
  // Commands in flight per queue. More may be submitted; they wait.
  uint16_t queue_depth;
  // How often anything here has changed, or the state of a path.
  uint64_t changes;
  // An `fb_disk_state`.
  uint32_t state;
  // How many paths there are; `fb_describe_path` says how each of them is.
  uint16_t paths;
  // How many of them are connected.
  uint16_t live_paths;
} fb_info;

// How a path is. Set `size` to `sizeof(fb_path_info)` before the call.
typedef struct fb_path_info {
  // `sizeof(fb_path_info)`, by which the library knows your version of it.
  size_t size;
  // Its URL. Valid until fb_disconnect.
  const char *url;
  // How long it has been in this state.
  uint64_t since_ms;
  // How often it was connected again.
  uint64_t reconnects;
  // An `fb_path_state`.
  uint32_t state;
  // How the namespace is reached through it (ANA: 1 optimized, 2 not, 3 inaccessible, 4 lost,
  // 15 changing); 0 if it is not connected.
  uint32_t access;
  // Why it was lost or could not be connected the last time, in UTF-8; empty if it never was.
  char error[FB_ERROR_BYTES];
} fb_path_info;

// An operation to submit. Set what you do not use to zero.
typedef struct fb_op {
  // Comes back with the completion.
  void *user;
  // For reads and writes: memory of `length` bytes at any address, which is the operation's
  // until it is complete (until then nobody may change it or free it, nor look at what is read).
  void *data;
  // Where the range begins, in bytes: a multiple of the block size.
  uint64_t offset;
  // How long it is, in bytes: a multiple of the block size, of less than 2^32 blocks.
  uint64_t length;
  // An `fb_kind`.
  uint32_t kind;
  // FB_DURABLE, FB_KEEP_ALLOCATED.
  uint32_t flags;
  // Which of the queue's disks: 0 for the one it was opened with.
  uint32_t disk;
  // Zero.
  uint32_t reserved;
} fb_op;

// An operation that is over.
typedef struct fb_completion {
  // As it was submitted.
  void *user;
  // How it went.
  fb_status status;
  // Which of the queue's disks.
  uint32_t disk;
} fb_completion;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Asks a discovery service what there is: `host`, or `host:port`. Without a port, 8009 is tried
// and then 4420. `options` may be null; what they say about paths means nothing here.
//
// # Safety
// The pointers are null or valid: a text, options, and a place for the result.
fb_status fb_discover(const char *address,
                      const struct fb_options *options,
                      struct fb_discovery **discovery);

// One of the entries: `index` counts from 0. FB_STATUS_RANGE if there are no more.
//
// # Safety
// The pointers are null or valid: a discovery, and a place of as many bytes as its `size` says.
fb_status fb_discovery_entry(const struct fb_discovery *discovery,
                             uint32_t index,
                             struct fb_entry *entry);

// Frees what was found; null does nothing.
//
// # Safety
// The pointer is null, or a discovery that nobody uses any more.
void fb_discovery_free(struct fb_discovery *discovery);

// Connects to what a URL names: `nvme+tcp://host:4420/nqn...?ns=1`. Several URLs, with blanks
// between them, are several paths to one namespace. It may be left out if there is only one.
// `options` may be null.
//
// Waits until one path is connected, as long as the options allow. From then on connections that
// are lost are made again, and operations go over another path or wait; they fail with
// FB_STATUS_LOST when the options' `ctrl_loss_timeout_ms` or `fast_io_fail_timeout_ms` is over. No
// operation is lost or done twice by that, and no write is done late.
//
// # Safety
// The pointers are null or valid: a text, options, and a place for the disk.
fb_status fb_connect(const char *url, const struct fb_options *options, struct fb_disk **disk);

// Releases a disk; null does nothing. Its queues go on until they are closed. No other call may be
// using the disk. In a forked process it does nothing.
//
// # Safety
// The pointer is null, or a disk that nobody uses any more.
void fb_disconnect(struct fb_disk *disk);

// What the disk is now: a size may change while it is connected.
//
// # Safety
// The pointers are null or valid: a disk, and a place of as many bytes as its `size` says.
fb_status fb_describe(const struct fb_disk *disk, struct fb_info *info);

// Reads `length` bytes from `offset` on into `data`: whole blocks, of any number. Blocks until it
// is done. A large transfer becomes several; when one fails, the rest is not begun.
//
// # Safety
// The disk is null or valid, and `data` has `length` bytes that nobody else uses meanwhile.
fb_status fb_read(const struct fb_disk *disk, void *data, uint64_t offset, uint64_t length);

// Writes `length` bytes of `data` from `offset` on, otherwise as `fb_read`. `flags` is 0 or
// FB_DURABLE.
//
// # Safety
// The disk is null or valid, and `data` has `length` bytes that nobody changes meanwhile.
fb_status fb_write(const struct fb_disk *disk,
                   const void *data,
                   uint64_t offset,
                   uint64_t length,
                   uint32_t flags);

// Makes durable everything that was complete before.
//
// # Safety
// The disk is null or valid.
fb_status fb_flush(const struct fb_disk *disk);

// Makes a range of whole blocks read as zeroes, without moving any. `flags`: FB_DURABLE,
// FB_KEEP_ALLOCATED.
//
// # Safety
// The disk is null or valid.
fb_status fb_write_zeroes(const struct fb_disk *disk,
                          uint64_t offset,
                          uint64_t length,
                          uint32_t flags);

// Says that a range of whole blocks is not needed any more: it reads as zeroes or as before. A
// hint, which the disk may not follow.
//
// # Safety
// The disk is null or valid.
fb_status fb_deallocate(const struct fb_disk *disk, uint64_t offset, uint64_t length);

// How one of a disk's paths is: `index` counts from 0 in the order of the URLs, up to
// `fb_info.paths`.
//
// # Safety
// The pointers are null or valid: a disk, and a place of as many bytes as its `size` says.
fb_status fb_describe_path(const struct fb_disk *disk, uint32_t index, struct fb_path_info *info);

// Opens a queue to a disk: a connection of its own over each path. It does not wait for that:
// operations do, and end with FB_STATUS_RESOURCES if the disk's queues are all in use. The queue
// goes on when the disk is let go.
//
// # Safety
// The pointers are null or valid: a disk, and a place for the queue.
fb_status fb_queue_open(const struct fb_disk *disk, struct fb_queue **queue);

// Gives a queue one more disk, so that one `fb_poll` waits for several. `index` gets the number
// that `fb_op.disk` calls it by: 1 for the second disk, and so on.
//
// # Safety
// The pointers are null or valid: a queue, a disk, and a place for the number.
fb_status fb_queue_add(struct fb_queue *queue, const struct fb_disk *disk, uint32_t *index);

// Closes a queue; null does nothing. Of the operations in flight, those that were not begun are
// given up, and the others waited for, so that no write of the queue is done after this returns
// and undoes a later one. How they ended is not told. If they do not end within 30 seconds,
// because the target is away, this returns FB_STATUS_LOST: a write may then still be done, once.
// The queue is closed in any case, and the memory is the caller's again; should the kernel not
// give it back, the process is ended (SIGABRT). It has to be the thread that opened it. In a
// forked process it does nothing.
//
// # Safety
// The pointer is null, or a queue that is not used any more.
fb_status fb_queue_close(struct fb_queue *queue);

// Takes an operation. It is begun at the latest by the next `fb_poll`, so several that are
// submitted in a row travel together. After a failure nothing was taken.
//
// # Safety
// The pointers are null or valid: a queue, and an operation whose memory is as it says.
fb_status fb_submit(struct fb_queue *queue, const struct fb_op *op);

// Begins what was submitted, waits until at least `min` operations are complete or `timeout_us`
// microseconds are over (negative: never), and hands up to `max` completions out. Gives their
// number, or a negative `fb_status`. With a `min` of 0 it does not wait. If fewer than `min` are
// in flight it waits for those only.
//
// # Safety
// The queue is null or valid, and there is room for `max` completions (none: null will do).
int32_t fb_poll(struct fb_queue *queue,
                struct fb_completion *completions,
                uint32_t min,
                uint32_t max,
                int64_t timeout_us);

// A status in plain words, for ever valid.
const char *fb_status_text(int32_t status);

// The errno that comes closest to a status (0 for success), for programs that know no better.
int fb_status_errno(int32_t status);

// What was wrong with the last call in this thread that failed: one sentence, in UTF-8. Valid
// until the next call that fails in this thread; empty before the first.
const char *fb_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FARBLOCK_H */
