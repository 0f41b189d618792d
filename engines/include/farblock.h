/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Made by cbindgen from crates/tools/capi: change it there, then `make header`. */

#ifndef FARBLOCK_H
#define FARBLOCK_H

#include <stddef.h>
#include <stdint.h>

// A property of a disk: it refuses writes and other changes.
#define FB_READ_ONLY 1

// A property of a disk: written data may be lost until a flush.
#define FB_VOLATILE_CACHE 2

// A property of a disk: deallocating frees space.
#define FB_DEALLOCATE 4

// A flag of writes and zeroing: durable when the operation completes.
#define FB_DURABLE 1

// A flag of zeroing: the space stays allocated.
#define FB_KEEP_ALLOCATED 2

// A value for times in the options: no limit.
#define FB_FOREVER UINT32_MAX

// An option: check every header with a CRC.
#define FB_HEADER_DIGEST 1

// An option: check all data with a CRC.
#define FB_DATA_DIGEST 2

// Size of the text in `fb_path_info.error`, with its zero byte.
#define FB_ERROR_BYTES 256

// Limit for the operations of a queue, those waiting for `fb_poll` included.
#define FB_QUEUE_OPERATIONS 65536

// Limit for the disks of a queue.
#define FB_QUEUE_DISKS 1024

// The result of a call or an operation. New versions may add values: treat unknown ones as
// failures.
enum fb_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Success.
  FB_STATUS_OK = 0,
  // An argument is invalid: it is null, unknown, or contradicts another one.
  FB_STATUS_ARGUMENT = -1,
  // An offset or a length is not a multiple of the block size.
  FB_STATUS_ALIGNMENT = -2,
  // The range is outside of the disk.
  FB_STATUS_RANGE = -3,
  // The operation is too large: split it.
  FB_STATUS_TOO_LARGE = -4,
  // The connection could not be made.
  FB_STATUS_CONNECT = -5,
  // The connection is lost. It is unknown whether a write in flight was executed.
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
  // The operation was cancelled, for example by `fb_options.waiting`.
  FB_STATUS_ABORTED = -12,
  // The system is out of memory, descriptors or queues.
  FB_STATUS_RESOURCES = -13,
  // The wrong thread (only the one that opened a queue may use it), or a forked process.
  FB_STATUS_THREAD = -14,
  // Too many operations are in flight on the queue: poll first.
  FB_STATUS_BUSY = -15,
  // A bug of the library; please report the message.
  FB_STATUS_BUG = -16,
  // A reservation of another host forbids the operation.
  FB_STATUS_CONFLICT = -17,
  // The controller or the disk denies access to this host.
  FB_STATUS_DENIED = -18,
  // The disk cannot be used yet; another attempt may succeed.
  FB_STATUS_NOT_READY = -19,
  // The write is above the disk's limit for atomic writes: split it.
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

// The command of an operation: a value of `fb_op.kind`.
enum fb_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Reads into `data`.
  FB_KIND_READ = 1,
  // Writes from `data`. FB_DURABLE is possible.
  FB_KIND_WRITE = 2,
  // Makes all earlier completed writes durable. No range.
  FB_KIND_FLUSH = 3,
  // Makes the range read as zeroes. FB_DURABLE, FB_KEEP_ALLOCATED are possible.
  FB_KIND_WRITE_ZEROES = 4,
  // Tells the disk that the range is no longer needed.
  FB_KIND_DEALLOCATE = 5,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_kind fb_kind;
#else
typedef uint32_t fb_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The event loop that moves the data: a value of `fb_options.engine`.
enum fb_engine
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // io_uring if it works, otherwise the portable one.
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

// The choice among several paths for an operation: a value of `fb_options.policy`. The names are
// the Linux kernel's. Paths that the target calls optimized (ANA) always come first.
enum fb_policy
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The first usable path in the given order.
  FB_POLICY_NUMA = 0,
  // The usable paths in turn.
  FB_POLICY_ROUND_ROBIN = 1,
  // The path with the fewest operations of the same queue in flight.
  FB_POLICY_QUEUE_DEPTH = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_policy fb_policy;
#else
typedef uint32_t fb_policy;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// How much processor time waiting may take to reduce latency: a value of `fb_options.spin`. The
// names are the same as in farblock's --spin.
enum fb_spin
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // A waiting thread polls for up to 200 us before it sleeps, if that makes the load faster.
  FB_SPIN_BALANCED = 0,
  // A waiting thread sleeps at once.
  FB_SPIN_EFFICIENT = 1,
  // A waiting thread polls while there is I/O, and a millisecond longer: up to one processor
  // under load.
  FB_SPIN_LATENCY = 2,
  // A waiting thread never sleeps.
  FB_SPIN_ALWAYS = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_spin fb_spin;
#else
typedef uint32_t fb_spin;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The state of a disk as a whole: a value of `fb_info.state`.
enum fb_disk_state
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // Every path is connected.
  FB_DISK_STATE_LIVE = 1,
  // Some paths are connected, but not all.
  FB_DISK_STATE_DEGRADED = 2,
  // No path is connected; operations wait.
  FB_DISK_STATE_WAITING = 3,
  // The library has given up every path; operations fail.
  FB_DISK_STATE_DEAD = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_disk_state fb_disk_state;
#else
typedef uint32_t fb_disk_state;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The state of a path: a value of `fb_path_info.state`.
enum fb_path_state
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  // The path was never connected.
  FB_PATH_STATE_CONNECTING = 1,
  // The path is connected.
  FB_PATH_STATE_LIVE = 2,
  // The path was lost, and the library is reconnecting it.
  FB_PATH_STATE_RECONNECTING = 3,
  // The library has given up the path.
  FB_PATH_STATE_DEAD = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum fb_path_state fb_path_state;
#else
typedef uint32_t fb_path_state;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// The answer of a discovery service.
typedef struct fb_discovery fb_discovery;

// A connected namespace, over one path or several. Any thread may use it, also several at a time.
// It outlives its connections: the library reconnects lost ones, and operations wait meanwhile.
typedef struct fb_disk fb_disk;

// Keeps many operations in flight, on one disk or several, without threads or copies. It belongs
// to the thread that opened it.
typedef struct fb_queue fb_queue;

// How to connect, and how to recover a lost connection. Set all fields to zero, then `size` to
// `sizeof(fb_options)`, then the fields you need: zero is the default of each.
typedef struct fb_options {
  // `sizeof(fb_options)`, by which the library knows your version of it.
  size_t size;
  // Host NQN, instead of this machine's.
  const char *hostnqn;
  // Host identifier (a UUID), instead of this machine's.
  const char *hostid;
  // Limit for each step of connecting (5000).
  uint32_t connect_timeout_ms;
  // Limit for an operation. After it, the library drops the connection and sends the operation
  // over another one (30000; or FB_FOREVER).
  uint32_t io_timeout_ms;
  // Either side drops the connection after this time without a message (5000; or FB_FOREVER).
  uint32_t keep_alive_ms;
  // FB_HEADER_DIGEST, FB_DATA_DIGEST.
  uint32_t flags;
  // An `fb_engine`.
  uint32_t engine;
  // Commands in flight per queue, if the controller allows as many (128).
  uint16_t queue_depth;
  // Limit for open queues; all blocking calls together use one more (64).
  uint16_t queues;
  // The longest pause between two attempts to reconnect (10000). The first attempt is made at
  // once.
  uint32_t reconnect_delay_ms;
  // The library gives up a path that was lost for this long; when no path remains, the disk is
  // dead (600000; or FB_FOREVER).
  uint32_t ctrl_loss_timeout_ms;
  // Operations fail when no path was usable for this long, while the library keeps reconnecting
  // (FB_FOREVER: they wait until the disk is dead).
  uint32_t fast_io_fail_timeout_ms;
  // Time after which a silent path counts as lost, if shorter than `keep_alive_ms` (600 with
  // several paths, otherwise unused).
  uint32_t path_timeout_ms;
  // Time to wait before the library repeats a write that was lost with its controller, if no
  // other controller can reset the lost one (Linux kernel, SPDK). 0: two or three times
  // `keep_alive_ms` plus the controller's own time; by then the controller must have ended
  // itself by NVMe Base 2.1. With a shorter time, a write that is stuck in such a target for
  // longer can undo later writes; 1 means practically no wait. Reads never wait.
  uint32_t quiesce_ms;
  // An `fb_policy`.
  uint32_t policy;
  // Time that `fb_connect` retries while the target is not reachable (0: it makes one attempt;
  // or FB_FOREVER).
  uint32_t connect_wait_ms;
  // Called ten times a second by a blocking call that waits, in the thread of the call, so that
  // a program can react to signals (null: calls wait). It returns 0 to continue, or another
  // value to end the call with FB_STATUS_ABORTED. An operation at a silent target ends when the
  // library drops its connection (`keep_alive_ms`). A write that was lost with its connection
  // ends when the target is back or given up (`ctrl_loss_timeout_ms`). It may be called until
  // `fb_disconnect`.
  int32_t (*waiting)(void *user);
  // The argument of `waiting`.
  void *waiting_user;
  // An `fb_spin`.
  uint32_t spin;
  // Must be zero.
  uint32_t reserved;
} fb_options;

// A discovery entry: a subsystem or another service. Set `size` to `sizeof(fb_entry)` before the
// call.
typedef struct fb_entry {
  // `sizeof(fb_entry)`, by which the library knows your version of it.
  size_t size;
  // The URL for fb_connect, without a namespace; null if fb_connect cannot use the entry. This
  // and the other texts are valid until fb_discovery_free. The other texts come from the remote
  // side and may have any characters; this one is printable ASCII.
  const char *url;
  // The subsystem's NQN.
  const char *nqn;
  // The entry's address (TRADDR).
  const char *address;
  // The entry's port (TRSVCID).
  const char *service;
  // The entry's type (SUBTYPE: 1 another discovery service, 2 a subsystem, 3 this service).
  uint32_t kind;
  // The entry's transport (TRTYPE: 1 RDMA, 2 Fibre Channel, 3 TCP).
  uint32_t transport;
} fb_entry;

// The properties of a disk. Set `size` to `sizeof(fb_info)` before the call.
typedef struct fb_info {
  // `sizeof(fb_info)`, by which the library knows your version of it.
  size_t size;
  // The capacity in bytes.
  uint64_t capacity_bytes;
  // The capacity in blocks.
  uint64_t blocks;
  // Operations that do not cross a multiple of this are fastest. 0: no preference.
  uint64_t optimal_bytes;
  // Writes in multiples of this, aligned to it, are fastest. 0: no preference.
  uint64_t preferred_write_bytes;
  // One line for people. Valid until fb_disconnect.
  const char *description;
  // Bytes in a block.
  uint32_t block_size;
  // FB_READ_ONLY, FB_VOLATILE_CACHE, FB_DEALLOCATE.
  uint32_t flags;
  // The namespace's identifier.
  uint32_t namespace_id;
  // Limit for open queues, without the queue of the blocking calls.
  uint16_t queues;
  // Commands in flight per queue. Further ones wait.
  uint16_t queue_depth;
  // Count of changes to any of these fields, or to the state of a path.
  uint64_t changes;
  // An `fb_disk_state`.
  uint32_t state;
  // The number of paths; `fb_describe_path` describes each of them.
  uint16_t paths;
  // The number of connected paths.
  uint16_t live_paths;
} fb_info;

// Describes a path. Set `size` to `sizeof(fb_path_info)` before the call.
typedef struct fb_path_info {
  // `sizeof(fb_path_info)`, by which the library knows your version of it.
  size_t size;
  // The path's URL. Valid until fb_disconnect.
  const char *url;
  // Time in this state.
  uint64_t since_ms;
  // The number of reconnections.
  uint64_t reconnects;
  // An `fb_path_state`.
  uint32_t state;
  // The path's access to the namespace (ANA: 1 optimized, 2 non-optimized, 3 inaccessible, 4
  // persistent loss, 15 change); 0 if the path is not connected.
  uint32_t access;
  // Why the path was last lost or could not be connected, in UTF-8; empty without an error.
  char error[FB_ERROR_BYTES];
} fb_path_info;

// An operation to submit. Set unused fields to zero.
typedef struct fb_op {
  // The caller's value, returned with the completion.
  void *user;
  // For reads and writes: memory of `length` bytes at any address. It belongs to the operation
  // until that completes: until then do not change or free it, and do not look at a read's data.
  void *data;
  // Start of the range, in bytes: a multiple of the block size.
  uint64_t offset;
  // Length of the range, in bytes: a multiple of the block size, of less than 2^32 blocks.
  uint64_t length;
  // An `fb_kind`.
  uint32_t kind;
  // FB_DURABLE, FB_KEEP_ALLOCATED.
  uint32_t flags;
  // One of the queue's disks: 0 for the one it was opened with.
  uint32_t disk;
  // Must be zero.
  uint32_t reserved;
} fb_op;

// A completed operation.
typedef struct fb_completion {
  // `fb_op.user` of the operation.
  void *user;
  // The result of the operation.
  fb_status status;
  // One of the queue's disks.
  uint32_t disk;
} fb_completion;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Asks the discovery service at `address`, a `host` or `host:port`, for its entries. Without a
// port it tries 8009 and then 4420. `options` may be null; its path options have no effect here.
//
// # Safety
// The pointers are null or valid: a text, options, and a place for the result.
fb_status fb_discover(const char *address,
                      const struct fb_options *options,
                      struct fb_discovery **discovery);

// Writes the entry with this `index`, which counts from 0. Returns FB_STATUS_RANGE if there are no
// more.
//
// # Safety
// The pointers are null or valid: a discovery, and a place of at least `size` bytes.
fb_status fb_discovery_entry(const struct fb_discovery *discovery,
                             uint32_t index,
                             struct fb_entry *entry);

// Frees a discovery; null does nothing.
//
// # Safety
// The pointer is null, or a discovery that is no longer in use.
void fb_discovery_free(struct fb_discovery *discovery);

// Connects to the disk at a URL: `nvme+tcp://host:4420/nqn...?ns=1`. Several URLs, separated by
// blanks, are several paths to one namespace. The namespace may be omitted if there is only one.
// `options` may be null.
//
// Waits until one path is connected, as long as the options allow. From then on the library
// reconnects lost connections, and operations use another path or wait. They fail with
// FB_STATUS_LOST when the options' `ctrl_loss_timeout_ms` or `fast_io_fail_timeout_ms` has passed.
// Reconnecting never loses an operation or executes it twice, and never executes a write late.
//
// # Safety
// The pointers are null or valid: a text, options, and a place for the disk.
fb_status fb_connect(const char *url, const struct fb_options *options, struct fb_disk **disk);

// Releases a disk; null does nothing. Its queues keep working until they are closed. No other call
// may be using the disk. In a forked process it does nothing.
//
// # Safety
// The pointer is null, or a disk that is no longer in use.
void fb_disconnect(struct fb_disk *disk);

// Describes the disk as it is now: its size may change while it is connected.
//
// # Safety
// The pointers are null or valid: a disk, and a place of at least `size` bytes.
fb_status fb_describe(const struct fb_disk *disk, struct fb_info *info);

// Describes one of a disk's paths: `index` counts from 0 in the order of the URLs, up to
// `fb_info.paths`.
//
// # Safety
// The pointers are null or valid: a disk, and a place of at least `size` bytes.
fb_status fb_describe_path(const struct fb_disk *disk, uint32_t index, struct fb_path_info *info);

// Reads `length` bytes from `offset` on into `data`: any number of whole blocks. Returns when the
// data has arrived. A large transfer is split; when one part fails, the later ones do not start.
//
// # Safety
// The disk is null or valid, and `data` has `length` bytes that no other thread uses meanwhile.
fb_status fb_read(const struct fb_disk *disk, void *data, uint64_t offset, uint64_t length);

// Writes `length` bytes of `data` from `offset` on, otherwise like `fb_read`. `flags` is 0 or
// FB_DURABLE.
//
// # Safety
// The disk is null or valid, and `data` has `length` bytes that no thread changes meanwhile.
fb_status fb_write(const struct fb_disk *disk,
                   const void *data,
                   uint64_t offset,
                   uint64_t length,
                   uint32_t flags);

// Makes all earlier completed writes durable.
//
// # Safety
// The disk is null or valid.
fb_status fb_flush(const struct fb_disk *disk);

// Makes a range of whole blocks read as zeroes, without transferring data. `flags`: FB_DURABLE,
// FB_KEEP_ALLOCATED.
//
// # Safety
// The disk is null or valid.
fb_status fb_write_zeroes(const struct fb_disk *disk,
                          uint64_t offset,
                          uint64_t length,
                          uint32_t flags);

// Tells the disk that a range of whole blocks is no longer needed: it then reads as zeroes or as
// before. This is a hint, which the disk may ignore.
//
// # Safety
// The disk is null or valid.
fb_status fb_deallocate(const struct fb_disk *disk, uint64_t offset, uint64_t length);

// Opens a queue to a disk, with its own connection over each path. It does not wait for the
// connections: operations wait for them, and fail with FB_STATUS_RESOURCES if the disk's queues
// are all in use. The queue keeps working after the disk is released.
//
// # Safety
// The pointers are null or valid: a disk, and a place for the queue.
fb_status fb_queue_open(const struct fb_disk *disk, struct fb_queue **queue);

// Adds a disk to a queue, so that one `fb_poll` waits for several. `index` receives its number for
// `fb_op.disk`: 1 for the second disk, and so on.
//
// # Safety
// The pointers are null or valid: a queue, a disk, and a place for the number.
fb_status fb_queue_add(struct fb_queue *queue, const struct fb_disk *disk, uint32_t *index);

// Closes a queue; null does nothing. It drops operations in flight that have not started, and
// waits for the others, so that no write of the queue executes after this returns and undoes a
// later one. It does not report their results. If they do not end within 30 seconds, because the
// target is unreachable, this returns FB_STATUS_LOST: a write may then still be executed, once.
// The queue is closed in any case, and the memory is the caller's again; if the kernel does not
// release it, the process is aborted (SIGABRT). Only the thread that opened the queue may call
// this. In a forked process it does nothing.
//
// # Safety
// The pointer is null, or a queue that is no longer in use.
fb_status fb_queue_close(struct fb_queue *queue);

// Submits an operation. It starts at the next `fb_poll` at the latest, so operations submitted in
// a row are sent together. After a failure nothing was submitted.
//
// # Safety
// The pointers are null or valid: a queue, and an operation whose `data` is as long as it says.
fb_status fb_submit(struct fb_queue *queue, const struct fb_op *op);

// Starts the submitted operations, waits until at least `min` operations are complete or
// `timeout_us` microseconds have passed (negative: no limit), and returns up to `max` completions.
// Returns their number, or a negative `fb_status`. With a `min` of 0 it does not wait. If fewer
// than `min` are in flight it waits only for those.
//
// # Safety
// The queue is null or valid, and there is room for `max` completions (for none, null is fine).
int32_t fb_poll(struct fb_queue *queue,
                struct fb_completion *completions,
                uint32_t min,
                uint32_t max,
                int64_t timeout_us);

// A status in plain words; the text stays valid.
const char *fb_status_text(int32_t status);

// The errno that is closest to a status (0 for success), for programs that need one.
int fb_status_errno(int32_t status);

// The failure of the last failed call in this thread: one sentence, in UTF-8. Valid until the next
// failed call in this thread; empty before the first.
const char *fb_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FARBLOCK_H */
